//! Stores received bytes into shared words, from any byte offset on.

use tidewater_runtime::mem::WordsMut;

/// Stores bytes in a shared window from any byte offset `at` on, and changes no byte outside. This thread
/// must be the window's only writer: partly changed words are loaded, changed and stored.
pub(super) fn store_bytes(words: WordsMut<'_>, at: usize, bytes: &[u8]) {
    let (before, aligned) = bytes.split_at(((8 - at % 8) % 8).min(bytes.len()));
    patch(words, at, before);
    let start = at + before.len();
    let (aligned, after) = aligned.split_at(aligned.len() / 8 * 8);
    words.copy_in(start, aligned);
    patch(words, start + aligned.len(), after);
}

/// Stores bytes that lie within one 64-bit word, at byte offset `at` of the window: loads the word,
/// changes them, stores it. Not atomic: the caller is the only writer.
fn patch(words: WordsMut<'_>, at: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let mut raw = words.as_read().load(at / 8 * 8).to_le_bytes();
    raw[at % 8..at % 8 + bytes.len()].copy_from_slice(bytes);
    words.store(at / 8 * 8, u64::from_le_bytes(raw));
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use tidewater_runtime::mem::Region;

    proptest! {
        #[test]
        fn only_the_named_bytes_change(at in 0usize..100, bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let region = Region::anonymous(256).unwrap();
            let words = region.words_mut(0, 256).unwrap();
            let mut model = [0xa5; 256];
            words.copy_in(0, &model);
            store_bytes(words, at, &bytes);
            model[at..at + bytes.len()].copy_from_slice(&bytes);
            let mut now = [0; 256];
            words.as_read().copy_out(0, &mut now);
            prop_assert_eq!(now, model);
        }
    }
}
