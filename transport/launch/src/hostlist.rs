//! Lists of hosts as Slurm writes them: `n[01-03,07],gpu1`, and counts like `2(x2),1`.

use tidewater_protocol::limits::{HOST_BYTES_MAX, LAUNCHED_MAX};

/// Reason why a text is no valid list of hosts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostlistError {
    /// The text does not parse.
    #[error("not a list of hosts, from byte {at}: {why}; write it as in n[01-03,07],gpu1")]
    Malformed {
        /// Byte offset of the error.
        at: usize,
        /// Description of the error.
        why: &'static str,
    },
    /// The list names too many hosts.
    #[error("a list of more hosts than a job may have processes")]
    TooMany,
}

/// Expands a Slurm host list to every host name in it, in order. Leading zeros stay; several brackets in a name
/// multiply.
///
/// # Errors
/// It does not parse, or has more than `max` hosts.
pub fn expand(list: &str, max: usize) -> Result<Vec<String>, HostlistError> {
    let mut hosts = Vec::new();
    let mut begin = 0;
    let mut depth = 0_u32;
    for (at, c) in list.char_indices().chain([(list.len(), ',')]) {
        match c {
            '[' => depth += 1,
            ']' => {
                let bad = malformed(at, "a closing bracket without an opening one");
                depth = depth.checked_sub(1).ok_or(bad)?;
            }
            ',' if depth == 0 => {
                expand_one(list, begin, at, max, &mut hosts)?;
                begin = at + 1;
            }
            _ => {}
        }
        if depth > 1 {
            return Err(malformed(at, "brackets inside brackets"));
        }
    }
    match depth {
        0 => Ok(hosts),
        _ => Err(malformed(list.len(), "a bracket that does not close")),
    }
}

/// Returns the port at which rank 0 of a Slurm step listens, 61,440 to 65,534, outside of the range of
/// ephemeral ports. It is a hash of the job's and the step's numbers, so that those of one host spread over the
/// range.
pub fn port_of(job: u64, step: &str) -> u16 {
    // FNV-1a: the same in every build.
    let bytes = job.to_le_bytes().into_iter().chain(step.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    61_440 + (hash % 4_095) as u16
}

/// Returns entry `node`, from 0, of a list of task counts like `2(x2),1`; `None` if the list is too short or
/// does not parse.
pub fn tasks_of(counts: &str, node: u32) -> Option<u32> {
    let mut before = 0_u32;
    for entry in counts.split(',') {
        let (count, times) = match entry.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?),
            None => (entry, "1"),
        };
        let (count, times): (u32, u32) = (count.parse().ok()?, times.parse().ok()?);
        before = before.checked_add(times)?;
        if node < before {
            return (1..=LAUNCHED_MAX).contains(&count).then_some(count);
        }
    }
    None
}

/// Expands one name of the list, `list[begin..end]`, with brackets or without, and appends its hosts.
fn expand_one(
    list: &str,
    begin: usize,
    end: usize,
    max: usize,
    hosts: &mut Vec<String>,
) -> Result<(), HostlistError> {
    let mut names = vec![String::new()];
    let mut at = begin;
    while at < end {
        let rest = &list[at..end];
        let (plain, bracket) = match rest.split_once('[') {
            Some((plain, bracket)) => (plain, Some(bracket)),
            None => (rest, None),
        };
        if !plain.bytes().all(is_name_byte) {
            return Err(malformed(at, "a character that no host name has"));
        }
        names.iter_mut().for_each(|name| name.push_str(plain));
        at += plain.len();
        let Some(bracket) = bracket else { break };
        let inside = bracket.split(']').next().unwrap_or_default();
        let room = max.saturating_sub(hosts.len());
        names = multiply(&names, inside, at + 1, room)?;
        at += inside.len() + 2;
    }
    let fits = |name: &String| (1..=HOST_BYTES_MAX).contains(&name.len());
    if !names.iter().all(fits) {
        return Err(malformed(begin, "a name of no bytes, or of too many"));
    }
    if hosts.len() + names.len() > max {
        return Err(HostlistError::TooMany);
    }
    hosts.extend(names);
    Ok(())
}

/// Returns each of `names` with each number of `ranges` appended. `at` is the byte offset in the list for
/// errors, `max` the maximum number of results.
fn multiply(
    names: &[String],
    ranges: &str,
    at: usize,
    max: usize,
) -> Result<Vec<String>, HostlistError> {
    let mut all = Vec::new();
    for name in names {
        for range in ranges.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| {
                let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                let parsed = text.parse::<u32>().ok().filter(|_| digits);
                parsed.ok_or(malformed(at, "not a number or a range of numbers"))
            };
            let (low, high, width) = (number(first)?, number(last)?, first.len());
            if low > high {
                return Err(malformed(at, "a range that runs backwards"));
            }
            if (high - low) as usize >= max.saturating_sub(all.len()) {
                return Err(HostlistError::TooMany);
            }
            all.extend((low..=high).map(|n| format!("{name}{n:0width$}")));
        }
    }
    Ok(all)
}

const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

const fn malformed(at: usize, why: &'static str) -> HostlistError {
    HostlistError::Malformed { at, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(list: &str) -> Vec<String> {
        expand(list, 100).unwrap()
    }

    #[test]
    fn lists_as_slurm_writes_them() {
        assert_eq!(hosts("vm"), ["vm"]);
        assert_eq!(hosts("n1,n2"), ["n1", "n2"]);
        assert_eq!(
            hosts("n[01-03,07],gpu1"),
            ["n01", "n02", "n03", "n07", "gpu1"]
        );
        assert_eq!(
            hosts("r[1-2]n[09-10]"),
            ["r1n09", "r1n10", "r2n09", "r2n10"]
        );
        assert_eq!(
            hosts("a-b.c_d[8-10]x"),
            ["a-b.c_d8x", "a-b.c_d9x", "a-b.c_d10x"]
        );
    }

    #[test]
    fn what_is_none_is_refused_and_costs_nothing() {
        for bad in [
            "",
            ",",
            "n[",
            "n]",
            "n[]",
            "n[1-]",
            "n[-1]",
            "n[2-1]",
            "n[[1]]",
            "n[1",
            "a b",
            "n[a]",
            "n[1-2-3]",
            "n[+1]",
            "n/1",
            "n[99999999999]",
            "n1,,n2",
        ] {
            assert!(
                matches!(expand(bad, 100), Err(HostlistError::Malformed { .. })),
                "{bad}: {:?}",
                expand(bad, 100)
            );
        }
        for long in [
            "n[0-4000000000]",
            "n[0-99]x[0-99]",
            "n[0-100]",
            "a[1-60],b[1-60]",
        ] {
            let error = expand(long, 100).unwrap_err();
            assert_eq!(error, HostlistError::TooMany, "{long}");
        }
        assert_eq!(hosts("n[0-99]").len(), 100);
    }

    #[test]
    fn counts_per_node() {
        let list = "2(x2),1,4(x3)";
        let counts: Vec<_> = (0..7).map(|node| tasks_of(list, node)).collect();
        assert_eq!(
            counts,
            [2, 2, 1, 4, 4, 4]
                .map(Some)
                .into_iter()
                .chain([None])
                .collect::<Vec<_>>()
        );
        for bad in ["", "x", "2(x", "2(xa)", "0", "-1"] {
            assert_eq!(tasks_of(bad, 0), None, "{bad}");
        }
    }

    #[test]
    fn ports_lie_outside_of_the_system_s_own_range() {
        for job in 0..10_000 {
            assert!((61_440..65_535).contains(&port_of(job, "0")));
        }
        assert_ne!(port_of(7, "0"), port_of(7, "1"));
        assert_eq!(port_of(7, "0"), port_of(7, "0"), "the same on every host");
    }

    proptest::proptest! {
        #[test]
        fn no_text_harms(text in "[a-z0-9\\[\\],()x-]{0,40}|.{0,40}", node: u32) {
            if let Ok(hosts) = expand(&text, 50) {
                assert!((1..=50).contains(&hosts.len()));
            }
            tasks_of(&text, node);
        }
    }
}
