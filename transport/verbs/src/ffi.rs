//! The only file that names a binding crate: types, constants, and one thin function for each verb that
//! is used.
//!
//! `verbs-dlopen` uses `rdma-mummy-sys`. Its C shim loads `libibverbs.so.1` when the program starts;
//! where there is none, each call answers EOPNOTSUPP. `verbs` alone uses `rdma-sys`, which links the
//! library. The two differ in their return value for "absent", and both leave out C's inline functions
//! or wrap them in panics. This file evens that out, and nothing else names either crate. A verb that
//! older libraries lack is looked up by its name, with either. The extended verbs (`ibv_wr_*`,
//! `ibv_create_cq_ex`) are broken in `rdma-sys` 0.3 and in rxe's provider before rdma-core 61, and are
//! not used at all.
//!
//! # Safety
//! The functions are unsafe for one reason. A pointer argument must be an object of libibverbs that its
//! creating call returned and that has not been destroyed. Memory arguments must be valid for the call. A
//! function documents more only where it requires more.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};

#[cfg(feature = "verbs-dlopen")]
use rdma_mummy_sys as sys;
#[cfg(not(feature = "verbs-dlopen"))]
use rdma_sys as sys;
use rustix::io::Errno;

pub(super) use sys::{
    ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_mr,
    ibv_mw, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_recv_wr,
    ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_opcode, ibv_wr_opcode,
};

mod later;

pub(super) use later::{has_ece, query_ece, query_qp_data_in_order, set_ece};

use sys::{bind_mw_t, bind_mw_tso_union_t, ibv_mw_bind_info};

// The sizes in the kernel and the providers. A binding generated from other headers that disagreed
// would corrupt memory.
const _: () = assert!(size_of::<ibv_send_wr>() == 128);
const _: () = assert!(size_of::<ibv_recv_wr>() == 32);
const _: () = assert!(size_of::<ibv_sge>() == 16);
const _: () = assert!(size_of::<ibv_wc>() == 48);
const _: () = assert!(size_of::<ibv_qp_attr>() == 144);
const _: () = assert!(size_of::<ibv_qp_init_attr>() == 64);
const _: () = assert!(size_of::<ibv_device_attr>() == 232);

/// Numbers that the C headers define as enumerations.
pub(super) mod bits {
    use super::sys;
    pub(crate) const LOCAL_WRITE: u32 = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    pub(crate) const REMOTE_WRITE: u32 = sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
    pub(crate) const REMOTE_READ: u32 = sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
    pub(crate) const REMOTE_ATOMIC: u32 = sys::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
    pub(crate) const MW_BIND: u32 = sys::ibv_access_flags::IBV_ACCESS_MW_BIND.0;
    pub(crate) const RELAXED: u32 = sys::ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
    pub(crate) const WINDOW_2A: u32 = sys::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0;
    pub(crate) const WINDOW_2B: u32 = sys::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
    pub(crate) const FENCE: u32 = sys::ibv_send_flags::IBV_SEND_FENCE.0;
    pub(crate) const SIGNALED: u32 = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
    pub(crate) const INLINE: u32 = sys::ibv_send_flags::IBV_SEND_INLINE.0;
    pub(crate) const WITH_IMM: u32 = sys::ibv_wc_flags::IBV_WC_WITH_IMM.0;
    pub(crate) const NO_ATOMICS: u32 = sys::ibv_atomic_cap::IBV_ATOMIC_NONE;
    pub(crate) const PORT_ACTIVE: u32 = sys::ibv_port_state::IBV_PORT_ACTIVE;
    pub(crate) const LINK_INFINIBAND: u8 = 1;
    pub(crate) const RELIABLE: u32 = sys::ibv_qp_type::IBV_QPT_RC;
    pub(crate) const STATE_INIT: u32 = sys::ibv_qp_state::IBV_QPS_INIT;
    pub(crate) const STATE_RTR: u32 = sys::ibv_qp_state::IBV_QPS_RTR;
    pub(crate) const STATE_RTS: u32 = sys::ibv_qp_state::IBV_QPS_RTS;
    pub(crate) const STATE_ERR: u32 = sys::ibv_qp_state::IBV_QPS_ERR;
    /// Attributes that `ibv_modify_qp` reads on the way to each state.
    pub(crate) const TO_ERR: u32 = Mask::IBV_QP_STATE.0;
    pub(crate) const TO_INIT: u32 = Mask::IBV_QP_STATE.0
        | Mask::IBV_QP_PKEY_INDEX.0
        | Mask::IBV_QP_PORT.0
        | Mask::IBV_QP_ACCESS_FLAGS.0;
    pub(crate) const TO_RTR: u32 = Mask::IBV_QP_STATE.0
        | Mask::IBV_QP_AV.0
        | Mask::IBV_QP_PATH_MTU.0
        | Mask::IBV_QP_DEST_QPN.0
        | Mask::IBV_QP_RQ_PSN.0
        | Mask::IBV_QP_MAX_DEST_RD_ATOMIC.0
        | Mask::IBV_QP_MIN_RNR_TIMER.0;
    pub(crate) const TO_RTS: u32 = Mask::IBV_QP_STATE.0
        | Mask::IBV_QP_TIMEOUT.0
        | Mask::IBV_QP_RETRY_CNT.0
        | Mask::IBV_QP_RNR_RETRY.0
        | Mask::IBV_QP_SQ_PSN.0
        | Mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
    /// Attributes that `ibv_query_qp` is asked for.
    pub(crate) const QUERY: u32 = Mask::IBV_QP_PKEY_INDEX.0
        | Mask::IBV_QP_AV.0
        | Mask::IBV_QP_TIMEOUT.0
        | Mask::IBV_QP_RETRY_CNT.0;
    type Mask = sys::ibv_qp_attr_mask;
}

/// Return value of a verb, or the error number that it left.
pub(super) type Answer<T> = Result<T, Errno>;

/// The error number that the last failed call left.
fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Result of a call that returns an object.
fn object<T>(pointer: *mut T) -> Answer<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(last)
}

/// Result of a call that returns 0, an error number (of either sign), or -1 with errno set.
fn done(code: c_int) -> Answer<()> {
    match code {
        0 => Ok(()),
        -1 => Err(last()),
        code => Err(number(code)),
    }
}

/// An error number of either sign; EIO for one that the system does not have.
fn number(code: c_int) -> Errno {
    match code.saturating_abs() {
        known @ 1..=4095 => Errno::from_raw_os_error(known),
        _ => Errno::IO,
    }
}

/// The devices that libibverbs has a provider for; freed when dropped.
pub(super) struct DeviceList {
    first: NonNull<*mut ibv_device>,
    len: usize,
}

impl DeviceList {
    /// Queries libibverbs. An empty machine answers ENOSYS, a missing library EOPNOTSUPP.
    #[doc(alias = "ibv_get_device_list")]
    pub(super) fn get() -> Answer<Self> {
        let mut len = 0;
        // SAFETY: `len` is valid for the call.
        let first = unsafe { sys::ibv_get_device_list(&raw mut len) };
        Ok(Self {
            first: object(first)?,
            len: usize::try_from(len).unwrap_or(0),
        })
    }

    /// Iterates over the devices and their names.
    #[doc(alias = "ibv_get_device_name")]
    pub(super) fn iter(&self) -> impl Iterator<Item = (NonNull<ibv_device>, &CStr)> {
        // SAFETY: the list has `len` entries and lives until it is freed by `drop`.
        let devices = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) };
        devices.iter().filter_map(|&device| {
            let device = NonNull::new(device)?;
            // SAFETY: an entry of the list.
            let name = unsafe { sys::ibv_get_device_name(device.as_ptr()) };
            if name.is_null() {
                return None;
            }
            // SAFETY: libibverbs returns a terminated string that lives as long as the device.
            Some((device, unsafe { CStr::from_ptr(name) }))
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: made by `ibv_get_device_list`, freed once. Open contexts keep their devices.
        unsafe { sys::ibv_free_device_list(self.first.as_ptr()) };
    }
}

pub(super) unsafe fn open_device(device: NonNull<ibv_device>) -> Answer<NonNull<ibv_context>> {
    // SAFETY: the caller's: an entry of a list that is not freed.
    object(unsafe { sys::ibv_open_device(device.as_ptr()) })
}

pub(super) unsafe fn close_device(context: NonNull<ibv_context>) -> Answer<()> {
    // SAFETY: the caller's.
    done(unsafe { sys::ibv_close_device(context.as_ptr()) })
}

/// Number of the device's completion vectors, at least 1.
pub(super) unsafe fn completion_vectors(context: NonNull<ibv_context>) -> u32 {
    // SAFETY: the caller's: the context is open, and the number never changes.
    let vectors = unsafe { (*context.as_ptr()).num_comp_vectors };
    u32::try_from(vectors).unwrap_or(0).max(1)
}

pub(super) unsafe fn query_device(context: NonNull<ibv_context>) -> Answer<ibv_device_attr> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's; `attributes` is valid for the call.
    done(unsafe { sys::ibv_query_device(context.as_ptr(), &raw mut attributes) })?;
    Ok(attributes)
}

/// Calls the library's plain function, which fills all but the newest fields: those stay zero.
pub(super) unsafe fn query_port(context: NonNull<ibv_context>, port: u8) -> Answer<ibv_port_attr> {
    #[cfg(not(feature = "verbs-dlopen"))]
    use sys::ibv_query_port as query;
    #[cfg(feature = "verbs-dlopen")]
    use sys::ibv_query_port_compat as query;
    // SAFETY: plain numbers, for which zero is a value.
    let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's; the function's structure is a prefix of `attributes`.
    done(unsafe { query(context.as_ptr(), port, (&raw mut attributes).cast()) })?;
    Ok(attributes)
}

/// An event of a device. The bindings make an enumeration of its number, of which a later library may
/// have more values.
#[repr(C)]
struct AsyncEvent {
    /// A queue pair, a completion queue or the number of a port; `number` determines which.
    element: sys::ibv_async_event_element_t,
    /// Event number: one of `IBV_EVENT_*`.
    number: c_int,
}

const _: () = assert!(size_of::<AsyncEvent>() == size_of::<sys::ibv_async_event>());
const _: () = assert!(align_of::<AsyncEvent>() == align_of::<sys::ibv_async_event>());

/// Kind of element that an event concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    Port,
    Pair,
    Other,
}

/// Returns the descriptor that is readable when the device has an event.
pub(super) unsafe fn async_fd(context: NonNull<ibv_context>) -> c_int {
    // SAFETY: the caller's.
    unsafe { (*context.as_ptr()).async_fd }
}

/// Takes one event of a device with a non-blocking descriptor: its number, and the number of its port
/// or queue pair, if `element` assigns it one. EAGAIN when there is none.
pub(super) unsafe fn take_async_event(
    context: NonNull<ibv_context>,
    element: impl FnOnce(c_int) -> Element,
) -> Answer<(c_int, u32)> {
    let mut event = AsyncEvent {
        element: sys::ibv_async_event_element_t { qp: null_mut() },
        number: 0,
    };
    let place = (&raw mut event).cast::<sys::ibv_async_event>();
    // SAFETY: the caller's; `event` is laid out as the library's (asserted above).
    done(unsafe { sys::ibv_get_async_event(context.as_ptr(), place) })?;
    let of = match element(event.number) {
        // SAFETY: any value of it is valid, and it was written: at least by the null above.
        Element::Port => unsafe { event.element.port_num as u32 },
        Element::Pair => {
            // SAFETY: as above.
            let pair = unsafe { event.element.qp };
            // SAFETY: the library names a queue pair in these events, and does not let it be
            // destroyed before the event is acknowledged, which is below.
            unsafe { pair.as_ref() }.map_or(0, |pair| pair.qp_num)
        }
        Element::Other => 0,
    };
    let place = (&raw mut event).cast::<sys::ibv_async_event>();
    // SAFETY: as it was got, once.
    unsafe { sys::ibv_ack_async_event(place) };
    Ok((event.number, of))
}

pub(super) unsafe fn alloc_pd(context: NonNull<ibv_context>) -> Answer<NonNull<ibv_pd>> {
    // SAFETY: the caller's.
    object(unsafe { sys::ibv_alloc_pd(context.as_ptr()) })
}

pub(super) unsafe fn dealloc_pd(pd: NonNull<ibv_pd>) -> Answer<()> {
    // SAFETY: the caller's.
    done(unsafe { sys::ibv_dealloc_pd(pd.as_ptr()) })
}

/// More than the module requires: `[address, address + bytes)` stays mapped until the region is
/// deregistered, and no code makes references to it that a NIC's access would break.
pub(super) unsafe fn reg_mr(
    pd: NonNull<ibv_pd>,
    address: *mut u8,
    bytes: usize,
    iova: u64,
    access: u32,
) -> Answer<NonNull<ibv_mr>> {
    // SAFETY: the caller's.
    object(unsafe {
        sys::ibv_reg_mr_iova2(pd.as_ptr(), address.cast::<c_void>(), bytes, iova, access)
    })
}

pub(super) unsafe fn dereg_mr(mr: NonNull<ibv_mr>) -> Answer<()> {
    // SAFETY: the caller's.
    done(unsafe { sys::ibv_dereg_mr(mr.as_ptr()) })
}

/// Allocates a window of type 2.
pub(super) unsafe fn alloc_mw(pd: NonNull<ibv_pd>) -> Answer<NonNull<ibv_mw>> {
    // SAFETY: the caller's: a protection domain names its context, which is open.
    let context = unsafe { (*pd.as_ptr()).context };
    // SAFETY: as above; the provider filled the table.
    let Some(alloc) = (unsafe { (*context).ops.alloc_mw }) else {
        return Err(Errno::OPNOTSUPP);
    };
    // SAFETY: the provider's own function on its own object.
    object(unsafe { alloc(pd.as_ptr(), sys::ibv_mw_type::IBV_MW_TYPE_2) })
}

pub(super) unsafe fn dealloc_mw(mw: NonNull<ibv_mw>) -> Answer<()> {
    // SAFETY: the caller's: a window names its context, which is open.
    let context = unsafe { (*mw.as_ptr()).context };
    // SAFETY: as above; the provider filled the table.
    let Some(dealloc) = (unsafe { (*context).ops.dealloc_mw }) else {
        return Err(Errno::OPNOTSUPP);
    };
    // SAFETY: the provider's own function on its own object.
    done(unsafe { dealloc(mw.as_ptr()) })
}

pub(super) unsafe fn create_comp_channel(
    context: NonNull<ibv_context>,
) -> Answer<NonNull<ibv_comp_channel>> {
    // SAFETY: the caller's.
    object(unsafe { sys::ibv_create_comp_channel(context.as_ptr()) })
}

pub(super) unsafe fn destroy_comp_channel(channel: NonNull<ibv_comp_channel>) -> Answer<()> {
    // SAFETY: the caller's.
    done(unsafe { sys::ibv_destroy_comp_channel(channel.as_ptr()) })
}

/// `token` comes back from [`get_cq_event`]; no code dereferences it.
pub(super) unsafe fn create_cq(
    context: NonNull<ibv_context>,
    entries: c_int,
    token: usize,
    channel: Option<NonNull<ibv_comp_channel>>,
    vector: c_int,
) -> Answer<NonNull<ibv_cq>> {
    let channel = channel.map_or(null_mut(), NonNull::as_ptr);
    let token = std::ptr::without_provenance_mut(token);
    // SAFETY: the caller's.
    object(unsafe { sys::ibv_create_cq(context.as_ptr(), entries, token, channel, vector) })
}

pub(super) unsafe fn destroy_cq(cq: NonNull<ibv_cq>) -> Answer<()> {
    // SAFETY: the caller's.
    done(unsafe { sys::ibv_destroy_cq(cq.as_ptr()) })
}

/// Takes one event of a channel with a non-blocking descriptor: the queue, and its token. EAGAIN when
/// there is none. The event must be acknowledged.
pub(super) unsafe fn get_cq_event(
    channel: NonNull<ibv_comp_channel>,
) -> Answer<(NonNull<ibv_cq>, usize)> {
    let mut cq = null_mut();
    let mut token = null_mut();
    // SAFETY: the caller's; both places are valid for the call.
    done(unsafe { sys::ibv_get_cq_event(channel.as_ptr(), &raw mut cq, &raw mut token) })?;
    Ok((object(cq)?, token.addr()))
}

pub(super) unsafe fn ack_cq_events(cq: NonNull<ibv_cq>, events: c_uint) {
    // SAFETY: the caller's: it got these events and has not acknowledged them.
    unsafe { sys::ibv_ack_cq_events(cq.as_ptr(), events) };
}

#[inline]
pub(super) unsafe fn req_notify_cq(cq: NonNull<ibv_cq>) -> Answer<()> {
    // SAFETY: the caller's: a queue names its context, which is open.
    let context = unsafe { (*cq.as_ptr()).context };
    // SAFETY: as above; the provider filled the table.
    let Some(notify) = (unsafe { (*context).ops.req_notify_cq }) else {
        return Err(Errno::OPNOTSUPP);
    };
    // SAFETY: the provider's own function on its own object.
    done(unsafe { notify(cq.as_ptr(), 0) })
}

/// More than the module requires: `into` is valid for writes of `most` completions. Returns the number
/// written.
#[inline]
pub(super) unsafe fn poll_cq(cq: NonNull<ibv_cq>, most: c_int, into: *mut ibv_wc) -> Answer<usize> {
    // SAFETY: the caller's: a queue names its context, which is open.
    let context = unsafe { (*cq.as_ptr()).context };
    // SAFETY: as above; the provider filled the table.
    let Some(poll) = (unsafe { (*context).ops.poll_cq }) else {
        return Err(Errno::OPNOTSUPP);
    };
    // SAFETY: the provider's own function on its own object; `into` is the caller's.
    let got = unsafe { poll(cq.as_ptr(), most, into) };
    // Each provider has its own negative numbers.
    usize::try_from(got).map_err(|_| Errno::IO)
}

/// Creates a queue pair; `attributes.cap` then holds the granted sizes.
pub(super) unsafe fn create_qp(
    pd: NonNull<ibv_pd>,
    attributes: &mut ibv_qp_init_attr,
) -> Answer<NonNull<ibv_qp>> {
    // SAFETY: the caller's.
    object(unsafe { sys::ibv_create_qp(pd.as_ptr(), attributes) })
}

pub(super) unsafe fn modify_qp(
    qp: NonNull<ibv_qp>,
    attributes: &mut ibv_qp_attr,
    mask: u32,
) -> Answer<()> {
    // SAFETY: the caller's.
    done(unsafe { sys::ibv_modify_qp(qp.as_ptr(), attributes, mask as c_int) })
}

/// Queries the attributes of `mask`; others are zeros.
pub(super) unsafe fn query_qp(qp: NonNull<ibv_qp>, mask: u32) -> Answer<ibv_qp_attr> {
    let mut attributes = empty_attributes();
    // SAFETY: numbers and raw pointers, for which zero is a value.
    let mut initial: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's; both places are valid for the call.
    done(unsafe {
        sys::ibv_query_qp(
            qp.as_ptr(),
            &raw mut attributes,
            mask as c_int,
            &raw mut initial,
        )
    })?;
    Ok(attributes)
}

pub(super) unsafe fn destroy_qp(qp: NonNull<ibv_qp>) -> Answer<()> {
    // SAFETY: the caller's.
    done(unsafe { sys::ibv_destroy_qp(qp.as_ptr()) })
}

/// More than the module requires: `first` leads a list of requests with elements that name memory that
/// is registered or, if inline, valid for the call. On failure the second is the request that failed.
#[inline]
pub(super) unsafe fn post_send(
    qp: NonNull<ibv_qp>,
    first: *mut ibv_send_wr,
) -> Result<(), (Errno, *mut ibv_send_wr)> {
    let mut bad = first;
    // SAFETY: the caller's: a queue pair names its context, which is open.
    let context = unsafe { (*qp.as_ptr()).context };
    // SAFETY: as above; the provider filled the table.
    let Some(post) = (unsafe { (*context).ops.post_send }) else {
        return Err((Errno::OPNOTSUPP, first));
    };
    // SAFETY: the provider's own function on its own object; the list is the caller's.
    done(unsafe { post(qp.as_ptr(), first, &raw mut bad) }).map_err(|e| (e, bad))
}

/// Posts receives, like [`post_send`].
#[inline]
pub(super) unsafe fn post_recv(qp: NonNull<ibv_qp>, first: *mut ibv_recv_wr) -> Answer<()> {
    let mut bad = first;
    // SAFETY: the caller's: a queue pair names its context, which is open.
    let context = unsafe { (*qp.as_ptr()).context };
    // SAFETY: as above; the provider filled the table.
    let Some(post) = (unsafe { (*context).ops.post_recv }) else {
        return Err(Errno::OPNOTSUPP);
    };
    // SAFETY: the provider's own function on its own object; the list is the caller's.
    done(unsafe { post(qp.as_ptr(), first, &raw mut bad) })
}

/// Attributes of zeros, to fill in the fields in the mask of the change.
pub(super) fn empty_attributes() -> ibv_qp_attr {
    // SAFETY: numbers and unions of numbers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// A receive without memory.
pub(super) const fn empty_receive() -> ibv_recv_wr {
    ibv_recv_wr {
        wr_id: 0,
        next: null_mut(),
        sg_list: null_mut(),
        num_sge: 0,
    }
}

/// A request of zeros: no element, no next, no flag.
pub(super) fn empty_request() -> ibv_send_wr {
    // SAFETY: numbers and raw pointers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// Remote address and key of a READ or WRITE.
#[inline]
pub(super) fn rdma(rkey: u32, remote_addr: u64) -> sys::wr_t {
    sys::wr_t {
        rdma: sys::rdma_t { remote_addr, rkey },
    }
}

/// Remote address, key and operands of an atomic.
#[inline]
pub(super) fn atomic(rkey: u32, remote_addr: u64, compare_add: u64, swap: u64) -> sys::wr_t {
    sys::wr_t {
        atomic: sys::atomic_t {
            remote_addr,
            compare_add,
            swap,
            rkey,
        },
    }
}

/// Immediate data, in network order.
#[inline]
pub(super) fn immediate(value: u32) -> sys::imm_data_invalidated_rkey_union_t {
    sys::imm_data_invalidated_rkey_union_t {
        imm_data: value.to_be(),
    }
}

/// Immediate data of a completion that has some.
#[inline]
pub(super) fn immediate_of(wc: &ibv_wc) -> u32 {
    // SAFETY: both members of the union are 32 bits wide, and any value of them is valid.
    u32::from_be(unsafe { wc.imm_data_invalidated_rkey_union.imm_data })
}

/// Arguments of a bind request: the window, its next key, and the range that it opens.
pub(super) fn bind(
    mw: NonNull<ibv_mw>,
    rkey: u32,
    mr: NonNull<ibv_mr>,
    addr: u64,
    length: u64,
    access: u32,
) -> bind_mw_tso_union_t {
    bind_mw_tso_union_t {
        bind_mw: bind_mw_t {
            mw: mw.as_ptr(),
            rkey,
            bind_info: ibv_mw_bind_info {
                mr: mr.as_ptr(),
                addr,
                length,
                mw_access_flags: access,
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_provider_returns_is_an_error_number() {
        assert_eq!(done(0), Ok(()));
        assert_eq!(done(12), Err(Errno::NOMEM));
        assert_eq!(done(-22), Err(Errno::INVAL));
        for strange in [4096, -4096, 65_536, c_int::MAX, c_int::MIN] {
            assert_eq!(done(strange), Err(Errno::IO), "{strange}");
        }
    }
}
