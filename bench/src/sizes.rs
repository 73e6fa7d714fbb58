//! Message sizes as option texts: `64`, `8,64,4K`, `8:16M:x2`, `1K:64K:+1K`.

use std::str::FromStr;

/// Size of the smallest message, bytes: two elements. Sizes are multiples of it.
pub const STEP_BYTES: u64 = 8;
/// Size of the largest message, bytes: the benchmark keeps three copies of it.
pub const BYTES_MAX: u64 = 1 << 30;
/// Maximum sizes in a list: a range with a small step would run for days.
pub const SIZES_MAX: usize = 1_000;

/// Message sizes in bytes, in the order given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes(pub Vec<u64>);

/// Parses a number of bytes: digits, and optionally `K`, `M` or `G` (or lower case) for powers of 1024.
///
/// # Errors
/// A text with the defect and the accepted form.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let bad = || format!("\"{text}\" is no size: use a number of bytes like 64, 4K or 16M");
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    // `u64::from_str` would accept a sign.
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(bad());
    }
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).ok_or_else(bad)
}

fn message_bytes(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text)?;
    if bytes == 0 || bytes % STEP_BYTES != 0 || bytes > BYTES_MAX {
        return Err(format!(
            "a message of {bytes} bytes: use multiples of {STEP_BYTES} up to 1G"
        ));
    }
    Ok(bytes)
}

/// Appends the sizes of `first:last:xF` or `first:last:+S` to `into`; `last` only if a step meets it.
fn range(text: &str, into: &mut Vec<u64>) -> Result<(), String> {
    let bad =
        || format!("\"{text}\" is no range: use first:last:xF or first:last:+S, like 8:16M:x2");
    let parts: Vec<&str> = text.split(':').collect();
    let &[first, last, step] = &parts[..] else {
        return Err(bad());
    };
    let (first, last) = (message_bytes(first)?, message_bytes(last)?);
    if first > last {
        return Err(format!("the range \"{text}\" runs backwards"));
    }
    let (times, plus) = if let Some(factor) = step.strip_prefix('x') {
        (parse_bytes(factor)?, 0)
    } else if let Some(plus) = step.strip_prefix('+') {
        (1, message_bytes(plus)?)
    } else {
        return Err(bad());
    };
    if times < 2 && plus == 0 {
        return Err(format!(
            "the range \"{text}\" never ends: use a factor of at least 2"
        ));
    }
    let mut at = first;
    while at <= last {
        push(into, at)?;
        at = at.saturating_mul(times).saturating_add(plus);
    }
    Ok(())
}

fn push(into: &mut Vec<u64>, bytes: u64) -> Result<(), String> {
    if into.len() == SIZES_MAX {
        return Err(format!("more than {SIZES_MAX} sizes: use a larger step"));
    }
    into.push(bytes);
    Ok(())
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut sizes = Vec::new();
        for part in text.split(',') {
            if part.contains(':') {
                range(part, &mut sizes)?;
            } else {
                push(&mut sizes, message_bytes(part)?)?;
            }
        }
        Ok(Self(sizes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(text: &str) -> Result<Vec<u64>, String> {
        text.parse::<Sizes>().map(|s| s.0)
    }

    #[test]
    fn lists_and_ranges() {
        assert_eq!(sizes("64").unwrap(), [64]);
        assert_eq!(sizes("8,4k,1M").unwrap(), [8, 4096, 1 << 20]);
        assert_eq!(sizes("8:64:x2,128").unwrap(), [8, 16, 32, 64, 128]);
        assert_eq!(sizes("1K:3K:+1K").unwrap(), [1024, 2048, 3072]);
        assert_eq!(sizes("8:104:x4").unwrap(), [8, 32]);
        let all = sizes("8:16M:x2").unwrap();
        assert_eq!((all.len(), all.last()), (22, Some(&(16 << 20))));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, part) in [
            ("", "no size"),
            ("x", "no size"),
            ("+8", "no size"),
            ("-8", "no size"),
            ("99999999999999999999", "no size"),
            ("18446744073709551615K", "no size"),
            ("0", "multiples of 8"),
            ("12", "multiples of 8"),
            ("2G", "multiples of 8"),
            ("8:64", "no range"),
            ("8:64:2", "no range"),
            ("8:64:x2:x2", "no range"),
            ("64:8:x2", "backwards"),
            ("8:64:x1", "never ends"),
            ("8:64:+0", "multiples of 8"),
            ("8:1M:+8", "more than 1000"),
            ("8,,8", "no size"),
        ] {
            let e = sizes(text).unwrap_err();
            assert!(e.contains(part), "{text}: {e}");
        }
    }
}
