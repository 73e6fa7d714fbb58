//! Converts pointers and structs of C to Rust values, after every possible check. (long: one conversion for
//! each kind of pointer.)
//!
//! Each function's safety contract is the part that cannot be checked: the named memory exists, and
//! nothing changes it during the call.

use std::ffi::{c_char, c_void};
use std::mem::{align_of, size_of};
use std::slice;

use tidewater::Element;
use tidewater_protocol::limits::PARTITIONS_MAX;
use tidewater_protocol::table::DType;

use crate::error::Failure;
use crate::session::tw_session;
use crate::types::{
    tw_buffer_options, tw_counters, tw_function_options, tw_group_range, tw_pull_options,
    tw_pulled, tw_push_options, tw_schedule, tw_session_info, tw_session_options, tw_table_info,
    tw_table_options, tw_task_info, tw_task_options,
};
use crate::values::{PartitionLists, Values, ValuesMut};

/// Most bytes of an incoming string: a path is at most 4,095.
const TEXT_BYTES_MAX: usize = 4096;
/// Most bytes of an options struct of any release: a larger size is invalid.
const OPTIONS_BYTES_MAX: usize = 4096;

/// A struct that begins with its size.
///
/// # Safety
/// It is `repr(C)`, has no padding, begins with a `usize`, and any bytes make one.
pub(crate) unsafe trait Sized0: Copy {
    /// A value with all bytes zero.
    fn zero() -> Self {
        // SAFETY: any bytes make a `Self`, by the trait's contract.
        unsafe { std::mem::zeroed() }
    }
}

// SAFETY: numbers and raw pointers in an order that leaves no padding; see the test below.
unsafe impl Sized0 for tw_session_options {}
// SAFETY: as above.
unsafe impl Sized0 for tw_session_info {}
// SAFETY: as above.
unsafe impl Sized0 for tw_table_options {}
// SAFETY: as above.
unsafe impl Sized0 for tw_table_info {}
// SAFETY: as above.
unsafe impl Sized0 for tw_pull_options {}
// SAFETY: as above.
unsafe impl Sized0 for tw_pulled {}
// SAFETY: as above.
unsafe impl Sized0 for tw_push_options {}
// SAFETY: as above.
unsafe impl Sized0 for tw_function_options {}
// SAFETY: as above.
unsafe impl Sized0 for tw_buffer_options {}
// SAFETY: as above.
unsafe impl Sized0 for tw_schedule {}
// SAFETY: as above.
unsafe impl Sized0 for tw_task_options {}
// SAFETY: as above.
unsafe impl Sized0 for tw_task_info {}
// SAFETY: as above.
unsafe impl Sized0 for tw_counters {}

/// Returns the session of a pointer, if it has a session's mark.
///
/// # Safety
/// The pointer is null, or 8 bytes can be read there; if they are the mark, it is a session, which is
/// not freed during the call.
pub(crate) unsafe fn session<'a>(pointer: *const tw_session) -> Result<&'a tw_session, Failure> {
    if pointer.is_null() {
        return Err(Failure::null("the session"));
    }
    if !pointer.is_aligned() {
        return Err(tw_session::foreign());
    }
    // SAFETY: aligned and readable, as the caller promises; the mark is the first field.
    let mark = unsafe { pointer.cast::<u64>().read() };
    if mark != tw_session::MARK {
        return Err(tw_session::foreign());
    }
    // SAFETY: it has the mark, so it is a session; and it lives during the call.
    Ok(unsafe { &*pointer })
}

/// Returns the place of one output value.
///
/// # Safety
/// The pointer is null, or a `T` can be written there, and nothing else accesses it during the call.
pub(crate) unsafe fn out<'a, T: Copy>(pointer: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    aligned(pointer, what)?;
    // SAFETY: not null, aligned, and exclusive during the call, as the caller promises. The types used
    // here are numbers and pointers, of which any bytes make one.
    Ok(unsafe { &mut *pointer })
}

/// Like [`out`], but null is `None`.
///
/// # Safety
/// As of [`out`].
pub(crate) unsafe fn optional_out<'a, T: Copy>(
    pointer: *mut T,
    what: &str,
) -> Result<Option<&'a mut T>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the same contract.
    unsafe { out(pointer, what) }.map(Some)
}

/// Writes one value of an answer, unless its place is null.
///
/// # Safety
/// As of [`out`].
pub(crate) unsafe fn answer_value<T: Copy>(
    pointer: *mut T,
    what: &str,
    value: T,
) -> Result<(), Failure> {
    // SAFETY: the same contract.
    if let Some(place) = unsafe { optional_out(pointer, what) }? {
        *place = value;
    }
    Ok(())
}

/// Reads a string that ends with a NUL.
///
/// # Safety
/// The pointer is null, or the bytes there can be read up to a NUL or for 4,096 bytes, and live
/// unchanged for `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(Failure::null(what));
    }
    let mut len = 0;
    // SAFETY: no byte before this one was the NUL, so it can be read.
    while unsafe { pointer.wrapping_add(len).read() } != 0 {
        len += 1;
        if len == TEXT_BYTES_MAX {
            return Err(Failure::argument(format_args!(
                "{what} does not end within {TEXT_BYTES_MAX} bytes"
            )));
        }
    }
    // SAFETY: `len` bytes were just read there, and live unchanged, as the caller promises.
    let bytes = unsafe { slice::from_raw_parts(pointer.cast::<u8>(), len) };
    std::str::from_utf8(bytes).map_err(|_| Failure::argument(format_args!("{what} is not UTF-8")))
}

/// Reads the reason of a failure: a string that ends with a NUL, of which the first 4,095 bytes count. Bytes that are not
/// UTF-8 are replaced, since a failure is reported whatever its words are.
///
/// # Safety
/// As of [`text`].
pub(crate) unsafe fn reason(pointer: *const c_char) -> Result<String, Failure> {
    if pointer.is_null() {
        return Err(Failure::null("reason"));
    }
    let mut len = 0;
    // SAFETY: no byte before this one was the NUL, so it can be read.
    while len < TEXT_BYTES_MAX - 1 && unsafe { pointer.wrapping_add(len).read() } != 0 {
        len += 1;
    }
    // SAFETY: `len` bytes were just read there, and live unchanged, as the caller promises.
    let bytes = unsafe { slice::from_raw_parts(pointer.cast::<u8>(), len) };
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// Like [`text`], but null is `None`.
///
/// # Safety
/// As of [`text`].
pub(crate) unsafe fn optional_text<'a>(
    pointer: *const c_char,
    what: &str,
) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the same contract.
    unsafe { text(pointer, what) }.map(Some)
}

/// Reads a struct that begins with its size. Of a shorter one, from an older header, the rest is zero,
/// which means default. Of a longer one the rest has to be zero, or it holds an unknown option.
///
/// # Safety
/// The pointer is null, or a `usize` can be read there and as many bytes as it says.
pub(crate) unsafe fn options<T: Sized0>(pointer: *const T, what: &str) -> Result<T, Failure> {
    aligned(pointer, what)?;
    // SAFETY: not null and aligned; it begins with its size.
    let size = unsafe { pointer.cast::<usize>().read() };
    if !(size_of::<usize>()..=OPTIONS_BYTES_MAX).contains(&size) {
        return Err(Failure::argument(format_args!(
            "{what} says that it is {size} bytes long; set its first field to its sizeof ({})",
            size_of::<T>()
        )));
    }
    // SAFETY: as many bytes can be read as it says.
    let bytes = unsafe { slice::from_raw_parts(pointer.cast::<u8>(), size) };
    let (known, rest) = bytes.split_at(size.min(size_of::<T>()));
    if rest.iter().any(|&b| b != 0) {
        return Err(Failure::argument(format_args!(
            "{what} is {size} bytes long, this library knows {}, and the rest is not zero: the \
             program was compiled for a newer one",
            size_of::<T>()
        )));
    }
    let mut options = T::zero();
    // SAFETY: `known` is at most a `T` long; two places; any bytes make a `T`.
    unsafe {
        (&raw mut options)
            .cast::<u8>()
            .copy_from_nonoverlapping(known.as_ptr(), known.len());
    }
    Ok(options)
}

/// As [`options`], but null is all zeros: the defaults.
///
/// # Safety
/// As of [`options`].
pub(crate) unsafe fn options_or_default<T: Sized0>(pointer: *const T) -> Result<T, Failure> {
    if pointer.is_null() {
        return Ok(T::zero());
    }
    // SAFETY: the same contract.
    unsafe { options(pointer, "options") }
}

/// The size that a struct for an answer says that it has.
///
/// # Safety
/// The pointer is null, or a `usize` can be read there.
pub(crate) unsafe fn answer_size<T: Sized0>(
    pointer: *const T,
    what: &str,
) -> Result<usize, Failure> {
    aligned(pointer, what)?;
    // SAFETY: not null and aligned; it begins with its size.
    let size = unsafe { pointer.cast::<usize>().read() };
    let head = size_of::<usize>();
    if !(head..=OPTIONS_BYTES_MAX).contains(&size) {
        return Err(Failure::argument(format_args!(
            "{what} says that it is {size} bytes long; set its first field to its sizeof ({})",
            size_of::<T>()
        )));
    }
    Ok(size)
}

/// Writes a struct that begins with its size, as much as the caller has room for. Fields of a newer
/// caller beyond it are zeroed.
///
/// # Safety
/// The pointer is null, or a `usize` can be read there and as many bytes written as it says.
pub(crate) unsafe fn answer<T: Sized0>(
    pointer: *mut T,
    what: &str,
    answer: &T,
) -> Result<(), Failure> {
    // SAFETY: as the contract says.
    let size = unsafe { answer_size(pointer, what) }?;
    let head = size_of::<usize>();
    // SAFETY: as many bytes can be written as it says.
    let to = unsafe { slice::from_raw_parts_mut(pointer.cast::<u8>(), size) };
    // SAFETY: a `T` has no padding, so all its bytes can be read.
    let from = unsafe { slice::from_raw_parts((&raw const *answer).cast::<u8>(), size_of::<T>()) };
    // The size field stays as the caller set it.
    for (n, to) in to.iter_mut().enumerate().skip(head) {
        *to = from.get(n).copied().unwrap_or_default();
    }
    Ok(())
}

/// Returns an array for reading.
///
/// # Safety
/// `len` elements can be read there, unless `len` is 0, and nothing changes them for `'a`.
pub(crate) unsafe fn array<'a, T: Element>(
    pointer: *const T,
    len: usize,
    what: &str,
) -> Result<&'a [T], Failure> {
    check_array(pointer, len, what)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null, aligned, of a possible size; readable and unchanged, as the caller promises.
    // Any bytes make an element.
    Ok(unsafe { slice::from_raw_parts(pointer, len) })
}

/// Returns an array for writing.
///
/// # Safety
/// `len` elements can be written there, unless `len` is 0, and nothing else accesses them for `'a`.
pub(crate) unsafe fn array_mut<'a, T: Element>(
    pointer: *mut T,
    len: usize,
    what: &str,
) -> Result<&'a mut [T], Failure> {
    check_array(pointer, len, what)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not null, aligned, of a possible size; exclusive for `'a`, as the caller promises. Memory
    // from C has some bytes, whether they were set or not, and any make an element.
    Ok(unsafe { slice::from_raw_parts_mut(pointer, len) })
}

/// Returns the lists of a table's partitions.
///
/// # Safety
/// Each list that is not null, of as many numbers as its count says, is readable and unchanged for `'a`.
pub(crate) unsafe fn partition_lists<'a>(
    options: &tw_table_options,
) -> Result<PartitionLists<'a>, Failure> {
    let (servers, starts) = (options.partition_servers, options.partition_starts);
    let count = options.partition_start_count;
    // SAFETY: the same contract.
    let servers = unsafe {
        partition_list(
            servers,
            options.partition_server_count,
            "partition_servers",
            "partition_server_count",
        )
    }?;
    // SAFETY: the same contract.
    let starts =
        unsafe { partition_list(starts, count, "partition_starts", "partition_start_count") }?;
    Ok(PartitionLists { servers, starts })
}

/// Returns one list of a table's partitions.
///
/// # Safety
/// The list of `count` numbers, if it is not null, is readable and unchanged for `'a`.
unsafe fn partition_list<'a, T>(
    list: *const T,
    count: usize,
    name: &str,
    count_name: &str,
) -> Result<Option<&'a [T]>, Failure> {
    if list.is_null() && count == 0 {
        return Ok(None);
    }
    if count > PARTITIONS_MAX as usize {
        return Err(Failure::argument(format_args!(
            "{count_name} is {count}; a table has at most {PARTITIONS_MAX} partitions"
        )));
    }
    check_array(list, count, name)?;
    if count == 0 {
        return Ok(Some(&[]));
    }
    // SAFETY: not null, aligned, of a possible size; readable and unchanged, as the caller promises.
    Ok(Some(unsafe { slice::from_raw_parts(list, count) }))
}

/// Returns the keys of rows.
///
/// # Safety
/// `rows` keys can be read there, unless `rows` is 0, and nothing changes them for `'a`.
pub(crate) unsafe fn keys<'a>(pointer: *const u64, rows: usize) -> Result<&'a [u64], Failure> {
    // SAFETY: the same contract.
    unsafe { u64s(pointer, rows, "the array of keys") }
}

/// Returns an array of numbers: keys or handles.
///
/// # Safety
/// As of [`array`].
pub(crate) unsafe fn u64s<'a>(
    pointer: *const u64,
    len: usize,
    what: &str,
) -> Result<&'a [u64], Failure> {
    // SAFETY: the same contract; i64 and u64 have one layout, and any bytes make one.
    let numbers = unsafe { array(pointer.cast::<i64>(), len, what) }?;
    // SAFETY: as above.
    Ok(unsafe { slice::from_raw_parts(numbers.as_ptr().cast(), numbers.len()) })
}

/// Returns an array of keys for writing.
///
/// # Safety
/// As of [`array_mut`].
pub(crate) unsafe fn u64s_mut<'a>(
    pointer: *mut u64,
    len: usize,
    what: &str,
) -> Result<&'a mut [u64], Failure> {
    // SAFETY: the same contract; i64 and u64 have one layout, and any bytes make one.
    let numbers = unsafe { array_mut(pointer.cast::<i64>(), len, what) }?;
    // SAFETY: as above.
    Ok(unsafe { slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), numbers.len()) })
}

/// Returns an array of ranges of a group.
///
/// # Safety
/// As of [`array`].
pub(crate) unsafe fn group<'a>(
    pointer: *const tw_group_range,
    len: usize,
) -> Result<&'a [tw_group_range], Failure> {
    check_array(pointer, len, "the array of ranges")?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null, aligned, of a possible size; readable and unchanged, as the caller promises.
    // It has numbers and raw pointers, of which any bytes make one.
    Ok(unsafe { slice::from_raw_parts(pointer, len) })
}

/// Returns bytes for reading.
///
/// # Safety
/// As of [`array`].
pub(crate) unsafe fn bytes<'a>(
    pointer: *const c_void,
    len: usize,
    what: &str,
) -> Result<&'a [u8], Failure> {
    check_array(pointer.cast::<u8>(), len, what)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null, of a possible size; readable and unchanged, as the caller promises.
    Ok(unsafe { slice::from_raw_parts(pointer.cast(), len) })
}

/// Returns bytes for writing.
///
/// # Safety
/// As of [`array_mut`].
pub(crate) unsafe fn bytes_mut<'a>(
    pointer: *mut c_void,
    len: usize,
    what: &str,
) -> Result<&'a mut [u8], Failure> {
    check_array(pointer.cast::<u8>(), len, what)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not null, of a possible size; exclusive for `'a`, as the caller promises.
    Ok(unsafe { slice::from_raw_parts_mut(pointer.cast(), len) })
}

/// Returns an array of lengths for writing.
///
/// # Safety
/// As of [`array_mut`].
pub(crate) unsafe fn sizes_mut<'a>(
    pointer: *mut usize,
    len: usize,
    what: &str,
) -> Result<&'a mut [usize], Failure> {
    check_array(pointer, len, what)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: not null, aligned, of a possible size; exclusive for `'a`, as the caller promises.
    Ok(unsafe { slice::from_raw_parts_mut(pointer, len) })
}

/// Returns an array with an element type known at run time.
macro_rules! typed {
    ($Values:ident, $array:ident, $pointer:ident, $len:ident, $dtype:ident, $what:literal) => {{
        macro_rules! of {
            ($name:ident) => {{
                // SAFETY: the contract of the enclosing function.
                let array = unsafe { $array($pointer.cast(), $len, $what) }?;
                $Values::$name(array)
            }};
        }
        Ok(match $dtype {
            DType::F32 => of!(F32),
            DType::F64 => of!(F64),
            DType::I32 => of!(I32),
            DType::I64 => of!(I64),
        })
    }};
}

/// Returns the values of a push.
///
/// # Safety
/// As [`array`], with elements of type `dtype`.
pub(crate) unsafe fn values<'a>(
    pointer: *const c_void,
    len: usize,
    dtype: DType,
) -> Result<Values<'a>, Failure> {
    typed!(Values, array, pointer, len, dtype, "the array of values")
}

/// Returns the memory for the values of a pull.
///
/// # Safety
/// As [`array_mut`], with elements of type `dtype`.
pub(crate) unsafe fn values_mut<'a>(
    pointer: *mut c_void,
    len: usize,
    dtype: DType,
) -> Result<ValuesMut<'a>, Failure> {
    typed!(
        ValuesMut,
        array_mut,
        pointer,
        len,
        dtype,
        "the array to pull into"
    )
}

/// Memory that a call reads or writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    address: usize,
    bytes: usize,
}

impl Memory {
    /// Memory of `len` elements.
    pub(crate) fn array<T>(pointer: *const T, len: usize) -> Self {
        Self {
            address: pointer.addr(),
            bytes: len.saturating_mul(size_of::<T>()),
        }
    }

    /// Memory of `len` elements of a type known at run time.
    pub(crate) fn values(pointer: *const c_void, len: usize, dtype: DType) -> Self {
        Self {
            address: pointer.addr(),
            bytes: len.saturating_mul(dtype.size()),
        }
    }

    /// Whether it is null or has no bytes. Null is refused elsewhere, where an array is required.
    const fn is_empty(self) -> bool {
        self.address == 0 || self.bytes == 0
    }

    const fn end(self) -> usize {
        self.address.saturating_add(self.bytes)
    }
}

/// Fails when two arrays of a call share bytes: one is written while the other is read.
pub(crate) fn disjoint(a: Memory, b: Memory, what: &str) -> Result<(), Failure> {
    let apart = a.end() <= b.address || b.end() <= a.address;
    if a.is_empty() || b.is_empty() || apart {
        return Ok(());
    }
    Err(Failure::argument(format_args!("{what} overlap")))
}

fn aligned<T>(pointer: *const T, what: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::null(what));
    }
    if !pointer.is_aligned() {
        let due = align_of::<T>();
        return Err(Failure::argument(format_args!(
            "{what} at {pointer:p} is not aligned to {due} bytes"
        )));
    }
    Ok(())
}

fn check_array<T>(pointer: *const T, len: usize, what: &str) -> Result<(), Failure> {
    if len == 0 {
        return Ok(());
    }
    aligned(pointer, what)?;
    let bytes = len.checked_mul(size_of::<T>());
    let fits = bytes.is_some_and(|bytes| {
        isize::try_from(bytes).is_ok() && pointer.addr().checked_add(bytes).is_some()
    });
    if fits {
        return Ok(());
    }
    Err(Failure::argument(format_args!(
        "{what} of {len} elements is larger than memory can be"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::tw_status;

    #[test]
    fn no_struct_has_padding() {
        // Sums of the fields' sizes, in the order of the header.
        assert_eq!(
            size_of::<tw_session_options>(),
            5 * 8 + 8 * 4 + 3 * 8 + 2 * 8
        );
        assert_eq!(size_of::<tw_session_info>(), 8 + 6 * 4);
        assert_eq!(
            size_of::<tw_table_options>(),
            8 + 8 + 8 + 8 + 16 + 6 * 8 + 8 + 24 + 4 * 8 + 8 + 8 + 8 + 2 * 16
        );
        assert_eq!(size_of::<tw_table_info>(), 8 + 8 + 8 * 4);
        assert_eq!(size_of::<tw_pull_options>(), 8 + 8 + 8 + 8);
        assert_eq!(size_of::<tw_push_options>(), 8 + 8 + 4 * 4);
        assert_eq!(size_of::<tw_function_options>(), 5 * 8 + 2 * 4 + 2 * 8);
        assert_eq!(size_of::<tw_buffer_options>(), 8 + 2 * 4 + 4 * 8);
        assert_eq!(size_of::<tw_schedule>(), 8 + 2 * 4 + 6 * 8);
        assert_eq!(
            size_of::<tw_task_options>(),
            3 * 8 + 4 * 4 + 8 + 2 * 4 + 2 * 8 + 4 * 4
        );
        assert_eq!(size_of::<tw_task_info>(), 4 * 8 + 2 * 4);
        assert_eq!(size_of::<tw_counters>(), 22 * 8);
    }

    #[test]
    fn shorter_structs_are_filled_and_longer_ones_must_be_zero_beyond() {
        #[repr(C, align(8))]
        struct Newer([u8; 48]);
        let mut bytes = Newer([0; 48]);
        let pointer = (&raw const bytes).cast::<tw_pull_options>();
        // mode at 8, missing at 12, timeout at 16, pulled at 24, unknown from 32.
        bytes.0[8] = 3;
        bytes.0[12] = 1;
        let read = |bytes: &mut Newer, size: usize| {
            bytes.0[..8].copy_from_slice(&size.to_le_bytes());
            // SAFETY: up to 48 bytes can be read; sizes that say more are refused before.
            unsafe { options(pointer, "options") }
        };
        for size in [0, 7, OPTIONS_BYTES_MAX + 1, usize::MAX] {
            assert!(
                read(&mut bytes, size)
                    .unwrap_err()
                    .text
                    .contains("sizeof (32)")
            );
        }
        let older = read(&mut bytes, 12).unwrap();
        assert_eq!((older.mode, older.missing), (3, 0));
        let newer = read(&mut bytes, 48).unwrap();
        assert_eq!((newer.mode, newer.missing), (3, 1));
        bytes.0[47] = 1;
        assert!(read(&mut bytes, 48).unwrap_err().text.contains("newer"));
    }

    #[test]
    fn arrays_that_cannot_be_are_refused_without_being_touched() {
        let room = [0u64; 4];
        let at = room.as_ptr();
        // SAFETY: only memory inside `room` is read; all else is refused.
        let f64s = |p: *const u64, len| unsafe { values(p.cast(), len, DType::F64) };
        assert!(f64s(at, 4).is_ok());
        assert!(f64s(std::ptr::null(), 0).is_ok());
        let status = |r: Result<Values<'_>, Failure>| r.unwrap_err().status;
        assert_eq!(status(f64s(std::ptr::null(), 1)), tw_status::TW_ERR_NULL);
        assert_eq!(status(f64s(at, usize::MAX)), tw_status::TW_ERR_ARGUMENT);
        assert_eq!(status(f64s(at, 1 << 60)), tw_status::TW_ERR_ARGUMENT);
        let odd = at.cast::<u8>().wrapping_add(4).cast();
        assert_eq!(status(f64s(odd, 1)), tw_status::TW_ERR_ARGUMENT);
        let far = std::ptr::without_provenance(usize::MAX - 7);
        assert_eq!(status(f64s(far, 1)), tw_status::TW_ERR_ARGUMENT);
    }

    #[test]
    fn arrays_that_share_a_byte_are_not_disjoint() {
        let place = |address, bytes| Memory { address, bytes };
        let apart = |a, b| disjoint(a, b, "arrays");
        assert!(apart(place(64, 16), place(80, 8)).is_ok());
        assert!(apart(place(80, 8), place(64, 16)).is_ok());
        assert!(apart(place(64, 17), place(80, 8)).is_err());
        assert!(apart(place(80, 8), place(64, 64)).is_err());
        assert!(apart(place(64, 0), place(64, 8)).is_ok());
    }
}
