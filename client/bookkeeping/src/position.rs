//! Rows of the table that holds each worker's position in its data.

use tidewater_protocol::limits::POSITION_BYTES_MAX;

const WORD: usize = size_of::<i64>();
/// Words (8 bytes) of a row: the length in bytes plus 1, then the bytes.
pub const WORDS: usize = 1 + POSITION_BYTES_MAX / WORD;
/// Number of columns of the table, equal to `WORDS`.
pub const COLUMNS: u32 = 33;
const _: () = assert!(COLUMNS as usize == WORDS);

/// Encodes a position as a row; `None` if it is longer than [`POSITION_BYTES_MAX`].
///
/// # Examples
/// ```
/// use tidewater_bookkeeping::position::{decode, encode};
///
/// let row = encode(b"epoch 3").expect("7 bytes");
/// assert_eq!(decode(&row), Ok(Some(b"epoch 3".to_vec())));
/// ```
pub fn encode(position: &[u8]) -> Option<[i64; WORDS]> {
    if position.len() > POSITION_BYTES_MAX {
        return None;
    }
    let mut row = [0; WORDS];
    row[0] = position.len() as i64 + 1;
    for (word, bytes) in row[1..].iter_mut().zip(position.chunks(WORD)) {
        let mut padded = [0; WORD];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = i64::from_le_bytes(padded);
    }
    Some(row)
}

/// Decodes a row; `None` for a row of zeros, which no worker has written.
///
/// # Errors
/// The length in bytes that the row states, which is above [`POSITION_BYTES_MAX`].
pub fn decode(row: &[i64; WORDS]) -> Result<Option<Vec<u8>>, i64> {
    let Some(length) = row[0].checked_sub(1).filter(|length| *length >= 0) else {
        return Ok(None);
    };
    let bytes: Vec<u8> = row[1..]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let position = usize::try_from(length)
        .ok()
        .and_then(|length| bytes.get(..length));
    position
        .map(|position| Some(position.to_vec()))
        .ok_or(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_of_each_length_come_back() {
        for length in 0..=POSITION_BYTES_MAX {
            let bytes: Vec<u8> = (0..length).map(|n| n as u8 ^ 0x5a).collect();
            assert_eq!(decode(&encode(&bytes).unwrap()), Ok(Some(bytes)));
        }
        assert!(encode(&[0; POSITION_BYTES_MAX + 1]).is_none());
        assert_eq!(decode(&[0; WORDS]), Ok(None));
        let mut row = [0; WORDS];
        row[0] = 258;
        assert_eq!(decode(&row), Err(257));
        row[0] = i64::MIN;
        assert_eq!(decode(&row), Ok(None));
    }
}
