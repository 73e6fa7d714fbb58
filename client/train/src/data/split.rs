//! Lines that start in a byte range of a file.

use std::io::{self, BufRead, Seek, SeekFrom};
use std::ops::Range;

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

/// One line as read from a file.
pub(crate) struct RawLine<'a> {
    /// Offset of its first byte in the file.
    pub(crate) offset: u64,
    /// The line without its line end; cut when `too_long`.
    pub(crate) text: &'a [u8],
    /// Whether it exceeds the reader's limit; the rest of it was not read.
    pub(crate) too_long: bool,
}

/// Reads the lines that start in a byte range, with one buffer and a bound on a line's length.
pub(crate) struct LineReader<R> {
    source: R,
    position: u64,
    end: u64,
    line_bytes_max: usize,
    line: Vec<u8>,
}

impl<R: BufRead + Seek> LineReader<R> {
    /// Makes a reader and moves to the first line that starts in `range`.
    pub(crate) fn new(mut source: R, range: Range<u64>, line_bytes_max: usize) -> io::Result<Self> {
        let mut position = range.start;
        if position > 0 && position < range.end {
            // A line starts at `position` if and only if the byte before it is a newline.
            position -= 1;
            source.seek(SeekFrom::Start(position))?;
            position += skip_line(&mut source)?;
        }
        Ok(Self {
            source,
            position,
            end: range.end,
            line_bytes_max,
            line: Vec::new(),
        })
    }

    /// The next line, `None` after the last one that starts in the range or at the end of the file.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<RawLine<'_>>> {
        if self.position >= self.end {
            return Ok(None);
        }
        let offset = self.position;
        self.line.clear();
        let mut ended = false;
        while !ended && self.line.len() <= self.line_bytes_max {
            let chunk = fill(&mut self.source)?;
            if chunk.is_empty() {
                break;
            }
            // One byte past the limit shows that it is exceeded.
            let room = self.line_bytes_max + 1 - self.line.len();
            let newline = chunk.iter().take(room).position(|&b| b == b'\n');
            let text = newline.unwrap_or_else(|| chunk.len().min(room));
            self.line.extend_from_slice(&chunk[..text]);
            ended = newline.is_some();
            let used = text + usize::from(ended);
            self.source.consume(used);
            self.position += used as u64;
        }
        if self.position == offset {
            return Ok(None);
        }
        let too_long = self.line.len() > self.line_bytes_max;
        Ok(Some(RawLine {
            offset,
            text: trim_line(&self.line, offset),
            too_long,
        }))
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

    fn lines_of(file: &[u8], part: u32, parts: u32, buffer: usize) -> Vec<(u64, Vec<u8>)> {
        let source = BufReader::with_capacity(buffer, Cursor::new(file));
        let range = byte_range(file.len() as u64, part, parts);
        let mut reader = LineReader::new(source, range, 64).unwrap();
        let mut lines = Vec::new();
        while let Some(line) = reader.next_line().unwrap() {
            assert!(!line.too_long);
            lines.push((line.offset, line.text.to_vec()));
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
        let file = [b"ab\n".as_slice(), &[b'x'; 100]].concat();
        let mut reader = LineReader::new(Cursor::new(&file), 0..103, 10).unwrap();
        assert_eq!(reader.next_line().unwrap().unwrap().text, b"ab");
        let long = reader.next_line().unwrap().unwrap();
        assert!(long.too_long);
        assert_eq!((long.offset, long.text.len()), (3, 11));
        // A line of exactly the limit is not too long, and its newline is consumed with it.
        let file = b"0123456789\nz";
        let mut reader = LineReader::new(Cursor::new(&file), 0..12, 10).unwrap();
        assert!(!reader.next_line().unwrap().unwrap().too_long);
        assert_eq!(reader.next_line().unwrap().unwrap().text, b"z");
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
