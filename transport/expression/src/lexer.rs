//! Splits the text of an expression into tokens.

use crate::error::ExpressionError;

/// Smallest unit of the grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    Number(&'a str),
    Name(&'a str),
    Symbol(&'static str),
    End,
}

impl Token<'_> {
    /// Returns the token as an error quotes it.
    pub(crate) fn quoted(self) -> String {
        match self {
            Self::Number(text) | Self::Name(text) => format!("`{text}`"),
            Self::Symbol(text) => format!("`{text}`"),
            Self::End => "the end of the text".to_owned(),
        }
    }
}

/// Longer symbols come before their prefixes.
const SYMBOLS: [&str; 15] = [
    "<=", ">=", "==", "!=", "<", ">", "+", "-", "*", "/", "^", "(", ")", ",", "=",
];

/// Reads tokens from a text, one at a time.
#[derive(Clone, Copy)]
pub(crate) struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Returns the next token and its byte position.
    pub(crate) fn next_token(&mut self) -> Result<(usize, Token<'a>), ExpressionError> {
        let blanks = self.length(|c| matches!(c, ' ' | '\t' | '\n' | '\r'));
        self.at += blanks;
        let start = self.at;
        let rest = &self.text[start..];
        let Some(first) = rest.chars().next() else {
            return Ok((start, Token::End));
        };
        let token = if first.is_ascii_digit() || first == '.' {
            let text = &rest[..number_length(rest.as_bytes())];
            self.at += text.len();
            Token::Number(text)
        } else if first.is_ascii_alphabetic() || first == '_' {
            let text = &rest[..self.length(|c| c.is_ascii_alphanumeric() || c == '_')];
            self.at += text.len();
            Token::Name(text)
        } else if let Some(symbol) = SYMBOLS.iter().find(|&&symbol| rest.starts_with(symbol)) {
            self.at += symbol.len();
            Token::Symbol(symbol)
        } else {
            return Err(ExpressionError::Unexpected {
                position: start,
                expected: "a number, a name or an operator",
                found: format!("`{first}`"),
            });
        };
        Ok((start, token))
    }

    /// Bytes from here on that belong to the class; the classes are ASCII.
    fn length(&self, belongs: impl Fn(char) -> bool) -> usize {
        let rest = &self.text[self.at..];
        rest.find(|c| !belongs(c)).unwrap_or(rest.len())
    }
}

/// Bytes of the number at the front: digits, a point, digits, and an exponent if it has digits.
fn number_length(text: &[u8]) -> usize {
    let digits = |from: usize| {
        let rest = text.iter().skip(from);
        from + rest.take_while(|c| c.is_ascii_digit()).count()
    };
    let mut end = digits(0);
    if text.get(end) == Some(&b'.') {
        end = digits(end + 1);
    }
    if matches!(text.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
        let exponent = end + 1 + sign;
        if digits(exponent) > exponent {
            end = digits(exponent);
        }
    }
    end
}
