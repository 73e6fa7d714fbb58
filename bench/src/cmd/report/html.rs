//! Text of a page: escapes, and readable numbers.

/// Escapes text for use between tags or inside a quoted attribute.
pub(in crate::cmd) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            other => out.push(other),
        }
    }
    out
}

/// Unit of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Bytes, in powers of 1024.
    Bytes,
    /// A plain count without unit.
    Count,
    /// Times in microseconds, shown in ns, us, ms or s.
    Micros,
    /// Megabytes (10^6) a second, shown in kB/s, MB/s or GB/s.
    MegabytesPerS,
    /// Millions of calls a second, shown as a number, thousands or millions a second.
    MillionsPerS,
}

impl Unit {
    /// Formats a tick of an axis, or a value: short, with its unit.
    pub(super) fn text(self, value: f64) -> String {
        match self {
            Self::Bytes => bytes(value),
            Self::Count => digits(value),
            Self::Micros if value < 0.9995 => format!("{} ns", digits(value * 1e3)),
            Self::Micros if value < 999.5 => format!("{} us", digits(value)),
            Self::Micros if value < 999_500.0 => format!("{} ms", digits(value / 1e3)),
            Self::Micros => format!("{} s", digits(value / 1e6)),
            Self::MegabytesPerS if value < 0.9995 => format!("{} kB/s", digits(value * 1e3)),
            Self::MegabytesPerS if value < 999.5 => format!("{} MB/s", digits(value)),
            Self::MegabytesPerS => format!("{} GB/s", digits(value / 1e3)),
            Self::MillionsPerS if value < 0.000_999_5 => format!("{} /s", digits(value * 1e6)),
            Self::MillionsPerS if value < 0.9995 => format!("{} k/s", digits(value * 1e3)),
            Self::MillionsPerS => format!("{} M/s", digits(value)),
        }
    }
}

fn bytes(value: f64) -> String {
    for (size, name) in [(1_073_741_824.0, "G"), (1_048_576.0, "M"), (1024.0, "K")] {
        if value >= size {
            return format!("{}{name}", digits(value / size));
        }
    }
    digits(value)
}

/// Formats all digits before the point, and behind it as many as make three digits: at most three, without
/// zeros at the end. `-` for a number that is not finite.
pub(super) fn digits(value: f64) -> String {
    if !value.is_finite() {
        return "-".into();
    }
    let size = value.abs();
    let places = if size >= 99.95 || size == 0.0 {
        0
    } else if size >= 9.995 {
        1
    } else if size >= 0.9995 {
        2
    } else {
        3
    };
    let text = format!("{value:.places$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(
            escape("<a href=\"x\">'&'"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39;"
        );
    }

    #[test]
    fn values_are_short_and_have_units() {
        for (unit, value, text) in [
            (Unit::Bytes, 8.0, "8"),
            (Unit::Bytes, 65536.0, "64K"),
            (Unit::Bytes, 1_572_864.0, "1.5M"),
            (Unit::Micros, 0.172, "172 ns"),
            (Unit::Micros, 12.34, "12.3 us"),
            (Unit::Micros, 4500.0, "4.5 ms"),
            (Unit::MegabytesPerS, 2500.0, "2.5 GB/s"),
            (Unit::MillionsPerS, 0.0376, "37.6 k/s"),
            (Unit::Count, 32.0, "32"),
        ] {
            assert_eq!(unit.text(value), text);
        }
        assert_eq!(digits(f64::NAN), "-");
    }
}
