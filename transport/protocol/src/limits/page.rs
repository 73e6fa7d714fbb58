//! The page of limits for users, `docs/LIMITS.md`.

use core::fmt::Write as _;
use core::ops::RangeInclusive;
use core::time::Duration;
use std::path::Path;

use super::SECTIONS;

/// One limit as the macro declares it: name, doc comment and value.
pub(super) struct Limit {
    pub(super) name: &'static str,
    /// Its doc comment, with line breaks.
    pub(super) text: &'static str,
    pub(super) value: &'static (dyn Value + Sync),
}

/// Type of a limit's value that the page can show: an integer, a duration, or a range of integers.
pub(super) trait Value {
    /// Formats the value with its unit. `in_bytes`: an integer is a number of bytes, shown in KiB, MiB and so on.
    fn shown(&self, in_bytes: bool) -> String;
}

macro_rules! number {
    ($($type:ty),+) => {$(
        impl Value for $type {
            fn shown(&self, in_bytes: bool) -> String {
                let number = u128::from(*self as u64);
                if in_bytes { bytes(number) } else { grouped(number) }
            }
        }
    )+};
}

number!(u8, u16, u32, u64, usize);

impl Value for Duration {
    fn shown(&self, _: bool) -> String {
        let (seconds, micros) = (self.as_secs(), self.subsec_micros());
        match (seconds, micros) {
            (60.., 0) if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
            (1.., 0) => format!("{seconds} s"),
            (0, 1000..) if micros.is_multiple_of(1000) => format!("{} ms", micros / 1000),
            _ => format!("{} us", self.as_micros()),
        }
    }
}

impl Value for RangeInclusive<u8> {
    fn shown(&self, _: bool) -> String {
        format!("{} to {}", self.start(), self.end())
    }
}

fn grouped(number: u128) -> String {
    if number.is_power_of_two() && number >= 1 << 32 {
        return format!("2^{}", number.trailing_zeros());
    }
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn bytes(number: u128) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(bits, _)| {
        let unit = 1u128 << bits;
        number >= unit && number.is_multiple_of(unit)
    });
    unit.map_or_else(
        || format!("{} B", grouped(number)),
        |(bits, unit)| format!("{} {unit}", grouped(number >> bits)),
    )
}

/// Converts a doc comment to one line of Markdown, with links to other limits as code spans.
fn on_one_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").replace("[`", "`").replace("`]", "`")
}

fn page() -> String {
    let mut page = String::from(
        "# Limits\n\n\
         Every limit of Tidewater with its value and its reason. A request beyond one of them is refused, and the\n\
         error names the limit. Functions and expressions have [limits of their own](FUNCTIONS.md#limits).\n\n\
         This page is made of `transport/protocol/src/limits.rs`; a test compares the two.\n",
    );
    for (section, limits) in SECTIONS {
        write!(
            page,
            "\n## {section}\n\n| limit | value | what, and why |\n|---|---|---|\n"
        )
        .unwrap();
        for limit in *limits {
            let value = limit.value.shown(limit.name.contains("BYTES"));
            let text = on_one_line(limit.text);
            writeln!(page, "| `{}` | {value} | {text} |", limit.name).unwrap();
        }
    }
    page
}

#[test]
fn page_of_limits_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/LIMITS.md");
    let page = page();
    if std::env::var_os("TIDEWATER_TEST_BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap();
    assert!(
        stored == page,
        "docs/LIMITS.md differs from limits.rs; set TIDEWATER_TEST_BLESS=1 to write it"
    );
}

#[test]
fn values_have_units() {
    let shown = [
        (2048usize.shown(true), "2 KiB"),
        (1000usize.shown(true), "1,000 B"),
        (65_536u32.shown(false), "65,536"),
        ((1u64 << 63).shown(false), "2^63"),
        (Duration::from_secs(1800).shown(false), "30 min"),
        (Duration::from_secs(90).shown(false), "90 s"),
        (Duration::from_millis(50).shown(false), "50 ms"),
        (Duration::from_micros(1500).shown(false), "1500 us"),
        ((8u8..=15).shown(false), "8 to 15"),
    ];
    for (is, expected) in shown {
        assert_eq!(is, expected);
    }
}
