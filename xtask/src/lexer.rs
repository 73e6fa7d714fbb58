//! Tokens of a Rust source, comments included, each with its line.
//!
//! Checks need comments, which `syn` drops, and paths inside macro calls, which `syn` does not parse. The lexer accepts
//! every input: an unterminated comment or literal reaches to the end.

use std::ops::Range;

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Identifier or keyword.
    Word,
    /// String literal of any form.
    Text,
    /// Character, lifetime or number.
    Other,
    /// One character of punctuation.
    Punct,
    /// `//` to the end of the line.
    LineComment,
    /// `/* */`, nested ones included.
    BlockComment,
}

/// Token with its first line, counted from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
    pub(crate) line: usize,
}

impl Token<'_> {
    /// Whether it is that word or punctuation.
    pub(crate) fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Word | Kind::Punct) && self.text == text
    }

    pub(crate) fn is_comment(&self) -> bool {
        matches!(self.kind, Kind::LineComment | Kind::BlockComment)
    }

    /// Last line that it covers.
    pub(crate) fn last_line(&self) -> usize {
        self.line + self.text.bytes().filter(|byte| *byte == b'\n').count()
    }

    /// Content of a string literal without prefix and quotes; escapes stay as written.
    pub(crate) fn content(&self) -> &str {
        let open = self.text.find('"').map_or(0, |at| at + 1);
        let hashes = self.text[..open]
            .bytes()
            .filter(|byte| *byte == b'#')
            .count();
        let end = self.text.len().saturating_sub(1 + hashes).max(open);
        self.text.get(open..end).unwrap_or("")
    }
}

/// Tokens of a source in their order.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        if first.is_whitespace() {
            line += usize::from(first == '\n');
            at += first.len_utf8();
            continue;
        }
        let (kind, length) = token(rest, first);
        let text = rest.get(..length).unwrap_or(rest);
        found.push(Token { kind, text, line });
        line += text.bytes().filter(|byte| *byte == b'\n').count();
        at += text.len();
    }
    found
}

/// Tokens without comments.
pub(crate) fn code(source: &str) -> Vec<Token<'_>> {
    tokens(source)
        .into_iter()
        .filter(|token| !token.is_comment())
        .collect()
}

/// Kind and length of the token at the start of `rest`.
fn token(rest: &str, first: char) -> (Kind, usize) {
    if rest.starts_with("//") {
        return (Kind::LineComment, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (Kind::BlockComment, block_comment(rest));
    }
    if let Some(length) = string(rest) {
        return (Kind::Text, length);
    }
    if let Some(quote) = rest.strip_prefix("b'").or_else(|| rest.strip_prefix('\'')) {
        let prefix = rest.len() - quote.len();
        return (Kind::Other, prefix + character_or_lifetime(quote));
    }
    if is_word_start(first) {
        let raw = if rest.starts_with("r#") { 2 } else { 0 };
        return (Kind::Word, raw + word_length(&rest[raw..]));
    }
    if first.is_ascii_digit() {
        return (Kind::Other, word_length(rest));
    }
    (Kind::Punct, first.len_utf8())
}

fn is_word_start(c: char) -> bool {
    c == '_' || c.is_alphabetic()
}

fn word_length(rest: &str) -> usize {
    rest.find(|c: char| c != '_' && !c.is_alphanumeric())
        .unwrap_or(rest.len())
}

fn block_comment(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let (mut depth, mut at) = (0_usize, 0);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// Length of the string literal at the start, if there is one.
fn string(rest: &str) -> Option<usize> {
    let prefix = rest
        .find(|c| !matches!(c, 'b' | 'c' | 'r'))
        .filter(|length| *length <= 2)?;
    let hashes = rest[prefix..]
        .bytes()
        .take_while(|byte| *byte == b'#')
        .count();
    let open = prefix + hashes;
    if !rest[open..].starts_with('"') {
        return None;
    }
    if rest[..prefix].contains('r') {
        let close = format!("\"{}", "#".repeat(hashes));
        let body = rest[open + 1..].find(&close);
        return Some(body.map_or(rest.len(), |body| open + 1 + body + close.len()));
    }
    if hashes > 0 {
        return None;
    }
    let bytes = rest.as_bytes();
    let mut at = open + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return Some(at + 1),
            _ => at += 1,
        }
    }
    Some(rest.len())
}

/// Length behind the opening quote.
fn character_or_lifetime(quote: &str) -> usize {
    let mut chars = quote.chars();
    let Some(first) = chars.next() else { return 0 };
    if first == '\\' {
        let escaped = chars.next().map_or(1, |c| 1 + c.len_utf8());
        return quote[escaped..]
            .find('\'')
            .map_or(quote.len(), |end| escaped + end + 1);
    }
    if chars.next() == Some('\'') {
        first.len_utf8() + 1
    } else {
        word_length(quote)
    }
}

/// Ranges of tokens of items under `#[cfg(test)]`. `code` has no comments.
pub(crate) fn test_items(code: &[Token<'_>]) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while at < code.len() {
        let Some(end) = attribute(code, at) else {
            at += 1;
            continue;
        };
        if !is_test_only(&code[at..end]) {
            at = end;
            continue;
        }
        let begin = at;
        at = end;
        while let Some(end) = attribute(code, at) {
            at = end;
        }
        at = item_end(code, at);
        found.push(begin..at);
    }
    found
}

/// End of the outer attribute at `at`, if there is one.
pub(crate) fn attribute(code: &[Token<'_>], at: usize) -> Option<usize> {
    if !code.get(at)?.is("#") || !code.get(at + 1)?.is("[") {
        return None;
    }
    let mut depth = 0_usize;
    for (offset, token) in code[at + 1..].iter().enumerate() {
        depth += usize::from(token.is("["));
        depth -= usize::from(token.is("]"));
        if depth == 0 {
            return Some(at + offset + 2);
        }
    }
    Some(code.len())
}

/// Whether `#[cfg(..)]` holds in tests only: `test`, or `all(..)` with `test`.
fn is_test_only(attribute: &[Token<'_>]) -> bool {
    let word = |at: usize, text: &str| attribute.get(at).is_some_and(|token| token.is(text));
    if !word(2, "cfg") || !word(3, "(") {
        return false;
    }
    word(4, "test")
        || word(4, "all")
            && (6..attribute.len()).any(|at| {
                word(at, "test")
                    && !(word(at - 1, "(") && (word(at - 2, "not") || word(at - 2, "any")))
            })
}

/// First token behind the item, field or statement that begins at `at`.
fn item_end(code: &[Token<'_>], at: usize) -> usize {
    const ITEMS: [&str; 16] = [
        "fn",
        "mod",
        "use",
        "impl",
        "struct",
        "enum",
        "union",
        "trait",
        "const",
        "static",
        "type",
        "unsafe",
        "async",
        "extern",
        "macro_rules",
        "let",
    ];
    let mut first = at;
    if code.get(at).is_some_and(|token| token.is("pub")) {
        first += 1;
        if code.get(first).is_some_and(|token| token.is("(")) {
            first += code[first..]
                .iter()
                .position(|token| token.is(")"))
                .unwrap_or(0)
                + 1;
        }
    }
    // A comma ends a field or an arm; in an item it stands between parameters.
    let is_item = code
        .get(first)
        .is_some_and(|token| ITEMS.contains(&token.text));
    let mut depth = 0_usize;
    for (offset, token) in code.iter().enumerate().skip(at) {
        match token.text {
            _ if token.kind != Kind::Punct => {}
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" if depth == 0 => return offset,
            "}" if depth == 1 => return offset + 1,
            "}" | ")" | "]" => depth -= 1,
            ";" if depth == 0 => return offset + 1,
            "," if depth == 0 && !is_item => return offset + 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<&str> {
        code(source)
            .iter()
            .filter(|token| token.kind == Kind::Word)
            .map(|token| token.text)
            .collect()
    }

    #[test]
    fn literals_and_comments_hold_no_words() {
        let source = concat!(
            "a r#\"b \" // \"# b\"c\\\"d\" /* e /* f */ g */ // h\n",
            "'\"' i '\\'' j b'\\\\' k 'l m<'n> r#type \"\\\\\" o br\"p\\\" q"
        );
        assert_eq!(words(source), ["a", "i", "j", "k", "m", "r#type", "o", "q"]);
    }

    #[test]
    fn lines_count_through_literals() {
        let found = tokens("\"a\nb\"\n/* c\n */ d\n");
        let lines: Vec<_> = found
            .iter()
            .map(|token| (token.line, token.last_line()))
            .collect();
        assert_eq!(lines, [(1, 2), (3, 4), (4, 4)]);
    }

    #[test]
    fn any_input_ends() {
        for source in [
            "\"",
            "'",
            "'\\",
            "b'",
            "/*",
            "r##\"x\"#",
            "#[",
            "#[cfg(",
            "\u{e9}'\u{e9}",
            "r#",
            "\"\\",
        ] {
            test_items(&code(source));
            assert!(
                tokens(source)
                    .iter()
                    .map(|token| token.text.len())
                    .sum::<usize>()
                    <= source.len()
            );
        }
    }

    #[test]
    fn content_has_no_quotes() {
        let contents: Vec<String> = tokens("\"a\" r#\"b\"# b\"c\" \"")
            .iter()
            .map(|token| token.content().to_owned())
            .collect();
        assert_eq!(contents, ["a", "b", "c", ""]);
    }

    /// Words that remain without items under `#[cfg(test)]`.
    fn without_tests(source: &str) -> Vec<String> {
        let code = code(source);
        let tests = test_items(&code);
        let kept = |at: &usize| !tests.iter().any(|range| range.contains(at));
        (0..code.len())
            .filter(kept)
            .filter(|at| code[*at].kind == Kind::Word)
            .map(|at| code[at].text.to_owned())
            .collect()
    }

    #[test]
    fn test_items_end_where_items_end() {
        assert_eq!(
            without_tests("#[cfg(test)] mod t { fn a() {} } fn b"),
            ["fn", "b"]
        );
        assert_eq!(without_tests("#[cfg(test)] mod t; fn b"), ["fn", "b"]);
        assert_eq!(
            without_tests("#[cfg(test)] #[x(y)] fn a<A, B>(c: A, d: B) { } b"),
            ["b"]
        );
        assert_eq!(
            without_tests("struct S { #[cfg(test)] a: [A; 2], b }"),
            ["struct", "S", "b"]
        );
        assert_eq!(without_tests("S { #[cfg(test)] a: A } b"), ["S", "b"]);
    }

    #[test]
    fn only_test_configurations_are_tests() {
        assert_eq!(
            without_tests("#[cfg(all(test, not(loom)))] mod a; b"),
            ["b"]
        );
        assert_eq!(
            without_tests("#[cfg(not(test))] a;"),
            ["cfg", "not", "test", "a"]
        );
        assert_eq!(
            without_tests("#[cfg(any(test, x))] a;"),
            ["cfg", "any", "test", "x", "a"]
        );
        assert_eq!(
            without_tests("#[cfg(all(x, not(test)))] a;"),
            ["cfg", "all", "x", "not", "test", "a"]
        );
    }
}
