//! Prose of a file: its comments, or the text of a Markdown document.

use crate::lexer::{self, Kind, Token};
use crate::tree::{Language, SourceFile};

/// Consecutive lines of prose.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Block {
    /// Whether it is a Rust doc comment.
    pub(crate) is_doc: bool,
    /// Line number, from 1, and text without the comment mark.
    pub(crate) lines: Vec<(usize, String)>,
}

/// Blocks of prose of a file.
pub(crate) fn blocks(file: &SourceFile) -> Vec<Block> {
    match file.language {
        Language::Rust => of_rust(&file.text),
        Language::Markdown => {
            let lines = file.text.lines().map(str::to_owned);
            vec![Block {
                is_doc: false,
                lines: (1..).zip(lines).collect(),
            }]
        }
        Language::C => of_marked_lines(c_comments(&file.text)),
        Language::Fortran => of_marked_lines(line_comments(&file.text, '!', false)),
        Language::Python => of_marked_lines(python_comments(&file.text)),
        Language::Script => of_marked_lines(line_comments(&file.text, '#', true)),
        Language::Toml => of_marked_lines(line_comments(&file.text, '#', false)),
    }
}

/// Joins lines that follow each other.
fn of_marked_lines(lines: Vec<(usize, String)>) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for (number, text) in lines {
        match blocks.last_mut() {
            Some(block)
                if block
                    .lines
                    .last()
                    .is_some_and(|(last, _)| last + 1 == number) =>
            {
                block.lines.push((number, text));
            }
            _ => blocks.push(Block {
                is_doc: false,
                lines: vec![(number, text)],
            }),
        }
    }
    blocks
}

/// Mark of a Rust comment: its length and whether it documents an item.
fn rust_mark(text: &str) -> (usize, bool) {
    let is_outer = |mark: &str, no: &str| text.starts_with(mark) && !text.starts_with(no);
    let is_doc = is_outer("///", "////")
        || text.starts_with("//!")
        || (is_outer("/**", "/***") && text != "/**/")
        || text.starts_with("/*!");
    (if is_doc { 3 } else { 2 }, is_doc)
}

fn of_rust(source: &str) -> Vec<Block> {
    let all = lexer::tokens(source);
    let mut blocks: Vec<Block> = Vec::new();
    let mut previous: Option<&str> = None; // mark of the line comment just before
    for (at, token) in all.iter().enumerate() {
        let mark = match token.kind {
            Kind::LineComment => {
                let (length, is_doc) = rust_mark(token.text);
                let (mark, text) = token.text.split_at(length);
                let line = (token.line, text.to_owned());
                match blocks.last_mut() {
                    Some(block)
                        if previous == Some(mark)
                            && block
                                .lines
                                .last()
                                .is_some_and(|last| last.0 + 1 == token.line) =>
                    {
                        block.lines.push(line);
                    }
                    _ => blocks.push(Block {
                        is_doc,
                        lines: vec![line],
                    }),
                }
                Some(mark)
            }
            Kind::BlockComment => {
                let (length, is_doc) = rust_mark(token.text);
                blocks.push(of_star_comment(token.text, length, token.line, is_doc));
                None
            }
            Kind::Text if is_doc_attribute(&all[..at]) => {
                let lines = token.content().lines().map(str::to_owned);
                blocks.push(Block {
                    is_doc: true,
                    lines: (token.line..).zip(lines).collect(),
                });
                None
            }
            _ => None,
        };
        previous = mark;
    }
    blocks
}

/// Whether a literal behind these tokens is the text of `#[doc = ".."]`.
fn is_doc_attribute(before: &[Token<'_>]) -> bool {
    matches!(before, [.., open, name, equals]
        if name.is("doc") && equals.is("=") && (open.is("[") || open.is(",") || open.is("(")))
}

/// Lines of `/* .. */` without marks and leading stars.
fn of_star_comment(text: &str, mark: usize, first: usize, is_doc: bool) -> Block {
    let body = text.get(mark..).unwrap_or("");
    let body = body.strip_suffix("*/").unwrap_or(body);
    let plain = |line: &str| line.trim_start().trim_start_matches('*').to_owned();
    Block {
        is_doc,
        lines: (first..).zip(body.lines().map(plain)).collect(),
    }
}

/// Comments from `mark` to the end of the line. With `needs_blank` a mark inside a word begins none (`${a#b}`).
fn line_comments(text: &str, mark: char, needs_blank: bool) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if number == 1 && line.starts_with("#!") {
            continue;
        }
        if let Some(comment) = line_comment(line, mark, needs_blank) {
            found.push((number, comment.trim_start_matches(mark).to_owned()));
        }
    }
    found
}

/// Comment at the end of a line, outside of quotes.
fn line_comment(line: &str, mark: char, needs_blank: bool) -> Option<&str> {
    let (mut quote, mut before) = (None, ' ');
    for (at, c) in line.char_indices() {
        match quote {
            Some(open) if c == open && before != '\\' => quote = None,
            Some(_) => {}
            None if c == mark && (before.is_whitespace() || !needs_blank) => {
                return Some(&line[at..]);
            }
            None if matches!(c, '"' | '\'') && before != '\\' => quote = Some(c),
            None => {}
        }
        before = if before == '\\' { ' ' } else { c };
    }
    None
}

/// Comments and doc strings of Python.
fn python_comments(text: &str) -> Vec<(usize, String)> {
    const FENCE: &str = "\"\"\"";
    let mut found = Vec::new();
    let mut in_doc = false;
    for (number, line) in (1..).zip(text.lines()) {
        let start = line.trim_start().trim_start_matches(['r', 'f', 'b']);
        if in_doc {
            let (body, ends) = line
                .split_once(FENCE)
                .map_or((line, false), |(body, _)| (body, true));
            found.push((number, body.to_owned()));
            in_doc = !ends;
        } else if let Some(body) = start.strip_prefix(FENCE) {
            let closed = body.split_once(FENCE);
            found.push((number, closed.map_or(body, |(body, _)| body).to_owned()));
            in_doc = closed.is_none();
        } else if let Some(comment) =
            line_comment(line, '#', false).filter(|text| !text.starts_with("#!"))
        {
            found.push((number, comment.trim_start_matches('#').to_owned()));
        }
    }
    found
}

/// Comments of C and C++, of both forms.
fn c_comments(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    // Tokens of comments and literals are those of Rust.
    for token in lexer::tokens(text) {
        match token.kind {
            Kind::LineComment => {
                found.push((
                    token.line,
                    token.text.trim_start_matches(['/', '!', '<']).to_owned(),
                ));
            }
            Kind::BlockComment => {
                found.extend(of_star_comment(token.text, 2, token.line, false).lines)
            }
            _ => {}
        }
    }
    found
}

/// Removes code blocks, and with `inline` also `code` and targets of links.
pub(crate) fn strip_code(lines: &[(usize, String)], inline: bool) -> Vec<(usize, String)> {
    let mut out: Vec<(usize, String)> = Vec::new();
    let mut fence: Option<String> = None;
    let mut paragraph: Vec<(usize, String)> = Vec::new();
    for (number, line) in lines {
        let start = line.trim_start_matches([' ', '\t', '>', '!']);
        let mark: String = start
            .chars()
            .take_while(|c| matches!(c, '`' | '~') && start.starts_with(*c))
            .collect();
        let is_mark = mark.len() >= 3;
        match &fence {
            Some(open) => {
                if mark.starts_with(open.as_str()) {
                    fence = None;
                }
            }
            None if is_mark && !start[mark.len()..].contains('`') => {
                fence = Some(mark);
                flush(&mut paragraph, &mut out, inline);
            }
            None => {
                let is_blank = line.trim().is_empty();
                paragraph.push((*number, line.clone()));
                if is_blank {
                    flush(&mut paragraph, &mut out, inline);
                }
            }
        }
    }
    flush(&mut paragraph, &mut out, inline);
    out
}

/// Moves a paragraph to `out`, without inline code if asked.
fn flush(paragraph: &mut Vec<(usize, String)>, out: &mut Vec<(usize, String)>, inline: bool) {
    if !inline {
        out.append(paragraph);
        return;
    }
    let texts: Vec<&str> = paragraph.iter().map(|(_, text)| text.as_str()).collect();
    let plain = without_link_targets(&without_code_spans(&texts.join("\n")));
    out.extend(
        paragraph
            .iter()
            .map(|(number, _)| *number)
            .zip(plain.split('\n').map(str::to_owned)),
    );
    paragraph.clear();
}

/// Replaces `code` by a blank; a run of backticks without its partner stays. Line breaks stay.
fn without_code_spans(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(open) = rest.find('`') {
        let length = run_length(&rest[open..]);
        out.push_str(&rest[..open]);
        let body = &rest[open + length..];
        rest = match closing(body, length) {
            Some(close) => {
                out.push(' ');
                out.extend(body[..close].chars().filter(|c| *c == '\n'));
                &body[close + length..]
            }
            None => body,
        };
    }
    out + rest
}

fn run_length(text: &str) -> usize {
    text.bytes().take_while(|byte| *byte == b'`').count()
}

/// Start of the next run of exactly `length` backticks.
fn closing(body: &str, length: usize) -> Option<usize> {
    let mut at = 0;
    while let Some(next) = body[at..].find('`') {
        let run = run_length(&body[at + next..]);
        if run == length {
            return Some(at + next);
        }
        at += next + run;
    }
    None
}

/// Replaces the target of `[text](target)`.
fn without_link_targets(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(open) = rest.find("](") {
        out.push_str(&rest[..open + 1]);
        let target = &rest[open + 2..];
        rest = match target.find(|c: char| c == ')' || c.is_whitespace()) {
            Some(end) if target[end..].starts_with(')') => &target[end + 1..],
            _ => target,
        };
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> Vec<Block> {
        let tree = crate::tree::Tree::new(vec![(path.to_owned(), text.to_owned())]);
        blocks(&tree.files[0])
    }

    fn texts(blocks: &[Block]) -> Vec<String> {
        blocks
            .iter()
            .flat_map(|block| &block.lines)
            .map(|(_, text)| text.trim().to_owned())
            .collect()
    }

    fn stripped(text: &str) -> Vec<String> {
        let lines: Vec<_> = (1..).zip(text.lines().map(str::to_owned)).collect();
        strip_code(&lines, true)
            .into_iter()
            .map(|(number, text)| format!("{number}{text}"))
            .collect()
    }

    #[test]
    fn run_of_doc_lines_is_one_block() {
        let found = file(
            "a.rs",
            "/// a\n///\n/// b\nfn f() {} // c\n//! d\n/// e\n\n/// f\n",
        );
        let counts: Vec<_> = found
            .iter()
            .map(|block| (block.is_doc, block.lines.len()))
            .collect();
        assert_eq!(
            counts,
            [(true, 3), (false, 1), (true, 1), (true, 1), (true, 1)]
        );
    }

    #[test]
    fn doc_attribute_is_documentation() {
        let found = file(
            "a.rs",
            "#[doc = \"a b\"] x! { doc = \"c\" } let doc = \"d\"; //// e\n",
        );
        assert_eq!(texts(&found), ["a b", "// e"]);
        assert_eq!([found[0].is_doc, found[1].is_doc], [true, false]);
    }

    #[test]
    fn strings_are_no_comments() {
        assert!(file("a.rs", "\"// who\" '\"' r\"/* who */\"").is_empty());
        assert_eq!(
            texts(&file("a.sh", "#!/bin/sh\necho \"# a\" ${b#c} $# # d\n")),
            ["d"]
        );
        assert_eq!(texts(&file("a.toml", "a = \"# b\" # c\n")), ["c"]);
        assert_eq!(
            texts(&file("a.f90", "print *, '! a' ! b\n!> c\n")),
            ["b", "> c"]
        );
        assert_eq!(
            texts(&file("a.c", "/* a\n * b */ x = \"// c\"; // d\n")),
            ["a", "b", "d"]
        );
    }

    #[test]
    fn python_has_doc_strings() {
        let text = "def f():\n    \"\"\"a\n    b\n    \"\"\"\n    x = \"# c\" # d\n    \"\"\"e\"\"\"\n    y\n";
        assert_eq!(texts(&file("a.py", text)), ["a", "b", "", "d", "e"]);
    }

    #[test]
    fn code_is_no_prose() {
        assert_eq!(stripped("a `b` ``c`d`` e"), ["1a     e"]);
        assert_eq!(stripped("a\n```sh\nb\n```\nc"), ["1a", "5c"]);
        assert_eq!(
            stripped("a `b\nc` d\n\ne ` f"),
            ["1a  ", "2 d", "3", "4e  f"]
        );
        assert_eq!(stripped("~~~~\na\n~~~\nb\n~~~~\nc"), ["6c"]);
    }

    #[test]
    fn link_target_is_no_prose() {
        assert_eq!(stripped("[a](b-nobody.md) c](d e)"), ["1[a] c]d e)"]);
    }
}
