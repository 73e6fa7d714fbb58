//! `cargo xtask words`: share of dialect words and of short doc comments, held by a ratchet.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::failure::{Failure, Result};
use crate::prose::{self, Block};
use crate::tree::{Language, SourceFile, Tree};

/// Words that plain technical English has no use for.
const DIALECT: [&str; 12] = [
    "who", "whose", "whom", "nobody", "somebody", "told", "tell", "tells", "telling", "anew",
    "beside", "amid",
];
/// Doc comments of up to this many words say nothing that the name does not say.
const SHORT_WORDS: usize = 3;
/// File of the recorded values.
const RATCHET: &str = "ci/words.toml";
const GOAL_DIALECT: Hundredths = Hundredths(100);
const GOAL_SHORT: Hundredths = Hundredths(400);

/// Number with two digits behind the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Hundredths(u64);

impl Hundredths {
    /// `part` in `whole`, times `scale`, rounded; 0 of nothing.
    fn share(part: usize, whole: usize, scale: usize) -> Self {
        let (part, whole) = (part as u64, whole as u64);
        Self(
            (part * scale as u64 * 100 + whole / 2)
                .checked_div(whole)
                .unwrap_or(0),
        )
    }
}

impl std::fmt::Display for Hundredths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// What was counted in some files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    words: usize,
    dialect: usize,
    docs: usize,
    short_docs: usize,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.words += other.words;
        self.dialect += other.dialect;
        self.docs += other.docs;
        self.short_docs += other.short_docs;
    }

    fn dialect_per_1000(&self) -> Hundredths {
        Hundredths::share(self.dialect, self.words, 1000)
    }

    fn short_percent(&self) -> Hundredths {
        Hundredths::share(self.short_docs, self.docs, 100)
    }
}

/// What to print besides the totals.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Options {
    /// Print file:line of each dialect word and each short doc comment
    #[arg(long)]
    list: bool,
    /// Print a table by area
    #[arg(long)]
    areas: bool,
    /// Record the present values, if they are lower than the recorded ones
    #[arg(long)]
    update: bool,
}

/// Counts, prints, and compares with the recorded values or lowers them.
pub(crate) fn run(root: &Path, options: Options) -> Result<String> {
    let tree = Tree::of_work_tree(root)?;
    let mut report = String::new();
    let mut areas: BTreeMap<&str, Count> = BTreeMap::new();
    for file in tree.files.iter().filter(|file| counts(file)) {
        let mut list = |line: usize, what: &str| {
            if options.list {
                let _ = writeln!(report, "{}:{line}: {what}", file.path);
            }
        };
        areas
            .entry(tree.area(&file.path))
            .or_default()
            .add(count(file, &mut list));
    }
    let mut total = Count::default();
    areas.values().for_each(|count| total.add(*count));
    if total.words == 0 || total.docs == 0 {
        return Err(Failure::NothingRead("comments"));
    }
    if options.areas {
        report.push_str(&table(&areas));
    }
    print!("{report}"); // a failed comparison keeps it
    let values = [
        Value {
            key: "dialect-words-per-1000",
            measured: total.dialect_per_1000(),
            goal: GOAL_DIALECT,
            detail: format!(
                "{} of {} words of comments and documents",
                total.dialect, total.words
            ),
        },
        Value {
            key: "short-docs-percent",
            measured: total.short_percent(),
            goal: GOAL_SHORT,
            detail: format!(
                "{} of {} doc comments have {SHORT_WORDS} words or fewer",
                total.short_docs, total.docs
            ),
        },
    ];
    compare(&root.join(RATCHET), &values, options.update)
}

/// History is not reworded: decisions and the change log are left out.
fn counts(file: &SourceFile) -> bool {
    !(file.path.starts_with("docs/adr/") || file.path == "CHANGELOG.md")
}

fn count(file: &SourceFile, list: &mut dyn FnMut(usize, &str)) -> Count {
    let mut count = Count::default();
    for block in prose::blocks(file) {
        for (line, text) in prose::strip_code(&block.lines, true) {
            for word in words(&text) {
                count.words += 1;
                let is_dialect = is_dialect(word);
                count.dialect += usize::from(is_dialect);
                if is_dialect {
                    list(line, word);
                }
            }
        }
        if block.is_doc && file.language == Language::Rust {
            count.docs += 1;
            let is_short = is_short(&block);
            count.short_docs += usize::from(is_short);
            if let (true, Some((line, text))) = (is_short, block.lines.first()) {
                list(*line, &format!("short doc comment:{text}"));
            }
        }
    }
    count
}

/// Words of a line: letters, digits and underscores, at least one letter.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c != '_' && c != '\'' && !c.is_alphanumeric())
        .map(|word| word.trim_matches('\''))
        .filter(|word| word.contains(char::is_alphabetic))
}

/// Whether it is a dialect word, also with `'s` and the like behind it.
fn is_dialect(word: &str) -> bool {
    let stem = word.split('\'').next().unwrap_or(word);
    DIALECT
        .iter()
        .any(|dialect| stem.eq_ignore_ascii_case(dialect))
}

/// Whether a doc comment has at most three words; inline code counts here, code blocks do not.
fn is_short(block: &Block) -> bool {
    let text = prose::strip_code(&block.lines, false);
    text.iter()
        .flat_map(|(_, line)| line.split_whitespace())
        .filter(|word| word.contains(char::is_alphanumeric))
        .nth(SHORT_WORDS)
        .is_none()
}

fn table(areas: &BTreeMap<&str, Count>) -> String {
    let mut out = String::from(
        "| area | words | dialect | in 1,000 | doc comments | short | % |\n|---|---:|---:|---:|---:|---:|---:|\n",
    );
    for (area, count) in areas {
        let _ = writeln!(
            out,
            "| {area} | {} | {} | {} | {} | {} | {} |",
            count.words,
            count.dialect,
            count.dialect_per_1000(),
            count.docs,
            count.short_docs,
            count.short_percent()
        );
    }
    out
}

/// Value that may only fall.
struct Value {
    key: &'static str,
    measured: Hundredths,
    goal: Hundredths,
    detail: String,
}

/// Compares with the file at `path`, or lowers what it records.
fn compare(path: &Path, values: &[Value], update: bool) -> Result<String> {
    let recorded = recorded(path)?;
    let mut report = String::new();
    let mut raised = 0;
    let mut written = String::from(HEADER);
    for value in values {
        let Value {
            key,
            measured,
            goal,
            detail,
        } = value;
        let limit = recorded.get(*key).copied();
        let _ = writeln!(report, "{key}: {measured} ({detail}); goal {goal}");
        let kept = match limit {
            Some(limit) if *measured > limit => {
                raised += 1;
                let _ = writeln!(report, "{key} is over the recorded {limit}: {measured}");
                limit
            }
            Some(limit) if *measured < limit && !update => {
                let _ = writeln!(
                    report,
                    "{key}: the recorded {limit} can be lowered: cargo xtask words --update"
                );
                limit
            }
            None if !update => {
                raised += 1;
                let _ = writeln!(
                    report,
                    "{key}: {RATCHET} records no value: cargo xtask words --update"
                );
                *measured
            }
            _ => *measured,
        };
        let _ = writeln!(written, "{key} = {kept}");
    }
    if update {
        fs::write(path, written).map_err(|source| Failure::File {
            action: "write",
            path: RATCHET.to_owned(),
            source,
        })?;
    }
    if raised > 0 {
        print!("{report}");
        return Err(Failure::Findings {
            count: raised,
            what: "values over the recorded ones",
            remedy:
                "reword what `cargo xtask words --list` shows; recorded values are never raised"
                    .to_owned(),
        });
    }
    Ok(report)
}

const HEADER: &str = "\
# Most that `cargo xtask words` allows; the values can only fall (`--update`).
";

/// Recorded values; none if there is no file.
fn recorded(path: &Path) -> Result<BTreeMap<String, Hundredths>> {
    let Ok(text) = fs::read_to_string(path) else {
        return Ok(BTreeMap::new());
    };
    let malformed = |problem: String| Failure::Malformed {
        subject: RATCHET.to_owned(),
        problem,
        remedy: "write KEY = NUMBER, or remove the file and run cargo xtask words --update"
            .to_owned(),
    };
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| malformed(error.to_string()))?;
    let mut recorded = BTreeMap::new();
    for (key, value) in table {
        let number = value
            .as_float()
            .or_else(|| value.as_integer().map(|number| number as f64));
        let number = number
            .filter(|number| (0.0..=1000.0).contains(number))
            .ok_or_else(|| malformed(format!("{key} is no number from 0 to 1000")))?;
        recorded.insert(key, Hundredths((number * 100.0).round() as u64));
    }
    Ok(recorded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(path: &str, text: &str) -> Count {
        let tree = Tree::new(vec![(path.to_owned(), text.to_owned())]);
        count(&tree.files[0], &mut |_, _| {})
    }

    #[test]
    fn dialect_words_have_boundaries() {
        let count = counted(
            "a.md",
            "Who's told? The whole, a teller, tell_all, TELLING tell-tale; amid besides.",
        );
        assert_eq!((count.words, count.dialect), (12, 5));
    }

    #[test]
    fn code_does_not_count() {
        let text = "a `who` b\n```\nwho\n```\n[c](who.md)\n";
        assert_eq!(
            counted("a.md", text),
            Count {
                words: 3,
                ..Count::default()
            }
        );
        let text = "/// Some of it:\n/// ```\n/// who();\n/// ```\nfn who() { \"who\" }\n";
        assert_eq!(
            counted("a.rs", text),
            Count {
                words: 3,
                docs: 1,
                short_docs: 1,
                dialect: 0
            }
        );
    }

    #[test]
    fn run_of_lines_is_one_doc_comment() {
        let text =
            "/// one\n/// two\n/// three\n///\n/// four\nfn f() {}\n/// `a::b` c\nfn g() {}\n";
        let count = counted("a.rs", text);
        assert_eq!((count.docs, count.short_docs), (2, 1));
    }

    #[test]
    fn comments_that_are_no_docs_are_never_short() {
        let count = counted("a.rs", "// one\n/* two */\n//// three\n");
        assert_eq!((count.words, count.docs), (3, 0));
    }

    #[test]
    fn history_is_left_out() {
        let tree = Tree::new(
            ["docs/adr/0001-a.md", "CHANGELOG.md", "docs/A.md"]
                .map(|path| (path.to_owned(), String::new()))
                .to_vec(),
        );
        let counted: Vec<_> = tree
            .files
            .iter()
            .filter(|file| counts(file))
            .map(|file| &file.path)
            .collect();
        assert_eq!(counted, ["docs/A.md"]);
    }

    fn value(measured: u64) -> [Value; 1] {
        [Value {
            key: "k",
            measured: Hundredths(measured),
            goal: Hundredths(0),
            detail: String::new(),
        }]
    }

    #[test]
    fn recorded_value_only_falls() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("words.toml");
        assert!(
            compare(&path, &value(830), false).is_err(),
            "nothing recorded"
        );
        compare(&path, &value(830), true).unwrap();
        assert!(compare(&path, &value(830), false).is_ok());
        assert!(compare(&path, &value(831), false).is_err());
        assert!(compare(&path, &value(831), true).is_err());
        assert!(
            fs::read_to_string(&path).unwrap().ends_with("k = 8.30\n"),
            "not raised"
        );
        assert!(
            compare(&path, &value(829), false)
                .unwrap()
                .contains("can be lowered")
        );
        compare(&path, &value(829), true).unwrap();
        assert!(compare(&path, &value(830), false).is_err());
    }

    #[test]
    fn damaged_record_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("words.toml");
        for text in ["k = \"x\"", "k = -1", "k = nan", "k"] {
            fs::write(&path, text).unwrap();
            assert!(compare(&path, &value(0), false).is_err(), "{text}");
        }
    }

    #[test]
    fn shares_round_to_hundredths() {
        assert_eq!(Hundredths::share(1, 3, 100).to_string(), "33.33");
        assert_eq!(Hundredths::share(2, 3, 1000).to_string(), "666.67");
        assert_eq!(Hundredths::share(0, 0, 100).to_string(), "0.00");
    }
}
