//! Lines of text within 100 columns.

use std::fmt::Write as _;

/// Width of a line in columns.
pub(super) const WIDTH: usize = 100;
/// Width of the label on the left, with the blanks after it.
pub(super) const LABEL: usize = 12;

/// Formats a label on the left and text to its right.
pub(super) fn paragraph(label: &str, text: &str) -> String {
    let mut out = String::new();
    let mut label = label;
    for line in wrap(text, WIDTH - LABEL) {
        let _ = writeln!(out, "{label:<LABEL$}{line}");
        label = "";
    }
    out
}

/// Breaks text at blanks into lines of at most `width` columns. A longer word is not broken: users
/// copy commands and addresses.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Formats bytes as `12 GiB`, with one decimal where that adds information.
pub(super) fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|&(_, shift)| bytes >> shift > 0);
    match unit {
        Some((name, shift)) if bytes.trailing_zeros() >= shift => {
            format!("{} {name}", bytes >> shift)
        }
        Some((name, shift)) => {
            let tenths = (u128::from(bytes) * 10) >> shift;
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        let known = [
            (0, "0 B"),
            (1023, "1023 B"),
            (8 << 20, "8 MiB"),
            (64 << 30, "64 GiB"),
            ((3 << 30) / 2, "1.5 GiB"),
            (25_276_502_016, "23.5 GiB"),
            (u64::MAX, "17179869183.9 GiB"),
        ];
        for (bytes, text) in known {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn lines_break_at_blanks() {
        assert_eq!(wrap("a bb  ccc", 4), ["a bb", "ccc"]);
        assert_eq!(wrap("longer-than-that x", 4), ["longer-than-that", "x"]);
        assert!(wrap("", 4).is_empty());
    }
}
