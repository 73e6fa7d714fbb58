//! Lines that start in a byte range of a file.

use std::io::{self, BufRead};
use std::ops::Range;

use tidewater_protocol::mutants::{self, Mutant};

use super::csv::{Quoting, RecordEnd};

/// The bytes in which the lines of part `part` of `parts` start: `[size * part / parts,
/// size * (part + 1) / parts)`. The ranges of all parts cover the file and do not overlap.
/// Empty for a part that does not exist.
pub fn byte_range(size: u64, part: u32, parts: u32) -> Range<u64> {
    if part >= parts {
        return size..size;
    }
    // The product needs 96 bits; the quotient is at most `size`.
    let edge = |p: u64| (u128::from(size) * u128::from(p) / u128::from(parts)) as u64;
    edge(u64::from(part))..edge(u64::from(part) + 1)
}

/// Reads the lines that start in a byte range, with one buffer and a bound on a line's length.
///
/// With quotes a line is a CSV record, which may contain line ends. Only a scan from the start of the
/// file finds where such records start.
pub(crate) struct LineReader<R> {
    source: R,
    position: u64,
    end: u64,
    line_bytes_max: usize,
    record_end: Option<RecordEnd>,
    line: Vec<u8>,
    /// Offset of the current line.
    offset: u64,
    /// Whether the current line exceeds the limit; the rest of it was not read.
    too_long: bool,
}

/// Offset at which the source of a [`LineReader`] starts.
pub(crate) fn start_of(range: &Range<u64>, quoting: Option<Quoting>) -> u64 {
    match quoting {
        Some(_) => 0,
        // A line starts at an offset if and only if the byte before it is a newline.
        None if range.is_empty() => range.start,
        None => range.start.saturating_sub(1),
    }
}

impl<R: BufRead> LineReader<R> {
    /// Makes a reader of a source that stands at [`start_of`] the range, and moves to the first line
    /// that starts in `range`.
    pub(crate) fn new(
        mut source: R,
        range: Range<u64>,
        line_bytes_max: usize,
        quoting: Option<Quoting>,
    ) -> io::Result<Self> {
        let mut position = start_of(&range, quoting);
        if position < range.start {
            position += match quoting {
                Some(_) => 0,
                None if mutants::on(Mutant::LineOfTwoParts) => 0,
                None => skip_line(&mut source)?,
            };
        }
        let mut reader = Self {
            source,
            position,
            end: range.end,
            line_bytes_max,
            record_end: quoting.map(RecordEnd::new),
            line: Vec::new(),
            offset: position,
            too_long: false,
        };
        while quoting.is_some() && reader.position < range.start {
            // The rest of a long record may end behind the start: the record after it is this part's.
            if std::mem::take(&mut reader.too_long) {
                reader.position += skip_line(&mut reader.source)?;
            } else if !reader.advance()? {
                break;
            }
        }
        Ok(reader)
    }

    /// Moves to the next line; `false` after the last one.
    pub(crate) fn advance(&mut self) -> io::Result<bool> {
        if std::mem::take(&mut self.too_long) {
            // An unclosed quote does not hide the lines behind it: the rest ends at a newline.
            self.position += skip_line(&mut self.source)?;
        }
        self.offset = self.position;
        self.line.clear();
        if self.position >= self.end {
            return Ok(false);
        }
        if let Some(end) = &mut self.record_end {
            end.restart();
        }
        let mut ended = false;
        while !ended && self.line.len() <= self.line_bytes_max {
            let chunk = fill(&mut self.source)?;
            if chunk.is_empty() {
                break;
            }
            // One byte past the limit shows that it is exceeded.
            let room = chunk.len().min(self.line_bytes_max + 1 - self.line.len());
            let newline = match &mut self.record_end {
                Some(end) => end.find(&chunk[..room]),
                None => chunk[..room].iter().position(|&b| b == b'\n'),
            };
            let text = newline.unwrap_or(room);
            self.line.extend_from_slice(&chunk[..text]);
            ended = newline.is_some();
            let used = text + usize::from(ended);
            self.source.consume(used);
            self.position += used as u64;
        }
        self.too_long = self.line.len() > self.line_bytes_max;
        Ok(self.position > self.offset)
    }

    /// The current line without its line end. One longer than the limit is cut one byte beyond it.
    pub(crate) fn text(&self) -> &[u8] {
        match self.too_long {
            true => &self.line,
            false => trim_line(&self.line, self.offset),
        }
    }

    /// Offset of the current line.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Offset of the first byte not read yet.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }
}

/// Counts the lines that end before `offset`, in a second pass: only an error pays for line numbers.
pub(crate) fn count_newlines<R: BufRead>(mut source: R, offset: u64) -> io::Result<u64> {
    let (mut left, mut lines) = (offset, 0);
    while left > 0 {
        let chunk = fill(&mut source)?;
        if chunk.is_empty() {
            break;
        }
        let taken = usize::try_from(left).map_or(chunk.len(), |n| n.min(chunk.len()));
        lines += chunk[..taken].iter().filter(|&&b| b == b'\n').count() as u64;
        source.consume(taken);
        left -= taken as u64;
    }
    Ok(lines)
}

/// Skips to the byte after the next newline, however far; returns the number of bytes skipped.
fn skip_line<R: BufRead>(source: &mut R) -> io::Result<u64> {
    let mut skipped = 0;
    loop {
        let chunk = fill(source)?;
        let newline = chunk.iter().position(|&b| b == b'\n');
        let used = newline.map_or(chunk.len(), |at| at + 1);
        let done = newline.is_some() || chunk.is_empty();
        source.consume(used);
        skipped += used as u64;
        if done {
            return Ok(skipped);
        }
    }
}

/// Calls `fill_buf` until no signal interrupts it.
fn fill<R: BufRead>(source: &mut R) -> io::Result<&[u8]> {
    loop {
        match source.fill_buf() {
            Ok(_) => break,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    // Returns from the buffer: the loop above filled it, or the source is at its end.
    source.fill_buf()
}

/// Removes the CR of a CR LF, and the byte order mark that some editors put at a file's start.
fn trim_line(line: &[u8], offset: u64) -> &[u8] {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match offset {
        0 => line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Cursor};

    use proptest::prelude::*;

    use super::*;

    fn reader_of(
        file: &[u8],
        range: Range<u64>,
        line_bytes_max: usize,
        buffer: usize,
    ) -> LineReader<BufReader<Cursor<&[u8]>>> {
        let mut cursor = Cursor::new(file);
        cursor.set_position(start_of(&range, None));
        let source = BufReader::with_capacity(buffer, cursor);
        LineReader::new(source, range, line_bytes_max, None).unwrap()
    }

    fn lines_of(file: &[u8], part: u32, parts: u32, buffer: usize) -> Vec<(u64, Vec<u8>)> {
        let range = byte_range(file.len() as u64, part, parts);
        let mut reader = reader_of(file, range, 64, buffer);
        let mut lines = Vec::new();
        while reader.advance().unwrap() {
            assert!(!reader.too_long);
            lines.push((reader.offset(), reader.text().to_vec()));
        }
        lines
    }

    /// An independent splitter: std's, on the whole file in memory.
    fn oracle(file: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut offset = 0;
        file.split_inclusive(|&b| b == b'\n')
            .map(|raw| {
                let at = offset;
                offset += raw.len() as u64;
                let text = raw.strip_suffix(b"\n").unwrap_or(raw);
                (at, text.strip_suffix(b"\r").unwrap_or(text).to_vec())
            })
            .collect()
    }

    proptest! {
        // Runs with a mutant leave no file.
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn every_line_is_read_by_exactly_one_worker(
            pieces in prop::collection::vec(("[a-c ]{0,9}", any::<bool>()), 0..12),
            last in "[a-c]{0,5}",
            workers in 1u32..20,
            buffer in 1usize..9,
        ) {
            let mut file: String = pieces
                .iter()
                .map(|(text, crlf)| format!("{text}{}", if *crlf { "\r\n" } else { "\n" }))
                .collect();
            file.push_str(&last);
            let file = file.as_bytes();
            let parts: Vec<_> = (0..workers)
                .map(|w| lines_of(file, w, workers, buffer))
                .collect();
            for (w, lines) in parts.iter().enumerate() {
                let range = byte_range(file.len() as u64, w as u32, workers);
                prop_assert!(lines.iter().all(|(at, _)| range.contains(at)));
            }
            prop_assert_eq!(parts.concat(), oracle(file));
        }
    }

    #[test]
    fn ranges_of_a_huge_file_meet() {
        let (size, parts) = (u64::MAX - 3, 65_536);
        let mut edge = 0;
        for part in 0..parts {
            let range = byte_range(size, part, parts);
            assert_eq!(range.start, edge);
            edge = range.end;
        }
        assert_eq!(edge, size);
        assert!(byte_range(size, 1, 1).is_empty());
        assert!(byte_range(size, 0, 0).is_empty());
    }

    #[test]
    fn a_long_line_is_cut_at_the_limit() {
        let file = [b"ab\n".as_slice(), &[b'x'; 100], b"\ncd"].concat();
        let mut reader = reader_of(&file, 0..106, 10, 8);
        assert!(reader.advance().unwrap() && reader.text() == b"ab");
        assert!(reader.advance().unwrap() && reader.too_long);
        assert_eq!((reader.offset(), reader.text().len()), (3, 11));
        // The rest of a long line is skipped: the next line is the one behind it.
        assert!(reader.advance().unwrap() && !reader.too_long);
        assert_eq!((reader.offset(), reader.text()), (104, &b"cd"[..]));
        // A line of exactly the limit is not too long, and its newline is consumed with it.
        let file = b"0123456789\nz";
        let mut reader = reader_of(file, 0..12, 10, 8);
        assert!(reader.advance().unwrap() && !reader.too_long);
        assert!(reader.advance().unwrap() && reader.text() == b"z");
        assert!(!reader.advance().unwrap());
    }

    #[test]
    fn newlines_are_counted_up_to_the_offset() {
        let file = b"a\n\nb\r\nc";
        let counts: Vec<_> = (0..=7)
            .map(|at| count_newlines(&file[..], at).unwrap())
            .collect();
        assert_eq!(counts, [0, 0, 1, 2, 2, 2, 3, 3]);
    }

    #[test]
    fn a_byte_order_mark_is_no_text() {
        let file = b"\xef\xbb\xbf1 2\n\xef\xbb\xbf";
        let lines = lines_of(file, 0, 1, 4);
        assert_eq!(lines[0].1, b"1 2");
        assert_eq!(lines[1].1, b"\xef\xbb\xbf");
    }
}
