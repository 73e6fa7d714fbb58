//! Verbs that are looked up by their names, because older libraries lack them.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use tidewater_protocol::wire::control::VerbsEce;

use super::{Answer, done, ibv_qp, ibv_wr_opcode};

/// Verbs that older libraries lack. Linked, they would keep the program from starting on a host with such a
/// library, and the shim does not have them.
struct LaterVerbs {
    query_qp_data_in_order: Option<QueryDataInOrder>,
    query_ece: Option<QueryEce>,
    set_ece: Option<SetEce>,
}

/// Type of `ibv_query_qp_data_in_order`, which is of IBVERBS_1.14.
type QueryDataInOrder = unsafe extern "C" fn(*mut ibv_qp, c_uint, u32) -> c_int;
/// Type of `ibv_query_ece`, which is of IBVERBS_1.10.
type QueryEce = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_ece) -> c_int;
/// Type of `ibv_set_ece`, which is of IBVERBS_1.10.
type SetEce = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_ece) -> c_int;

/// Options of enhanced connection establishment, as `infiniband/verbs.h` has them.
#[repr(C)]
#[derive(Default)]
struct ibv_ece {
    vendor_id: u32,
    options: u32,
    /// For later versions; 0.
    comp_mask: u32,
}

/// Returns those that the loaded library has.
fn later_verbs() -> &'static LaterVerbs {
    static VERBS: std::sync::OnceLock<LaterVerbs> = std::sync::OnceLock::new();
    VERBS.get_or_init(|| {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: a terminated name; the library is there already, linked or loaded, or not at all.
        let library = unsafe { libc::dlopen(c"libibverbs.so.1".as_ptr(), flags) };
        let find = |name: &CStr| match library.is_null() {
            true => null_mut(),
            // SAFETY: an open library, which is never closed, and a terminated name.
            false => unsafe { libc::dlsym(library, name.as_ptr()) },
        };
        let order = find(c"ibv_query_qp_data_in_order");
        let (query, set) = (find(c"ibv_query_ece"), find(c"ibv_set_ece"));
        LaterVerbs {
            // SAFETY: the function of that name has this type in every version; null is `None`.
            query_qp_data_in_order: unsafe {
                std::mem::transmute::<*mut c_void, Option<QueryDataInOrder>>(order)
            },
            // SAFETY: as above.
            query_ece: unsafe { std::mem::transmute::<*mut c_void, Option<QueryEce>>(query) },
            // SAFETY: as above.
            set_ece: unsafe { std::mem::transmute::<*mut c_void, Option<SetEce>>(set) },
        }
    })
}

/// Returns the ECE options of a queue pair; `None` where library or provider have none.
pub(in super::super) unsafe fn query_ece(qp: NonNull<ibv_qp>) -> Option<VerbsEce> {
    let query = later_verbs().query_ece?;
    let mut ece = ibv_ece::default();
    // SAFETY: the caller's; `ece` is valid for the call.
    let code = unsafe { query(qp.as_ptr(), &raw mut ece) };
    // A provider without ECE says so by EOPNOTSUPP: the pairs then connect without.
    (code == 0).then_some(VerbsEce {
        vendor: ece.vendor_id,
        options: ece.options,
    })
}

/// Requests ECE options for a queue pair that is not connected.
pub(in super::super) unsafe fn set_ece(qp: NonNull<ibv_qp>, ece: VerbsEce) -> Answer<()> {
    let set = later_verbs().set_ece.ok_or(Errno::OPNOTSUPP)?;
    let mut ece = ibv_ece {
        vendor_id: ece.vendor,
        options: ece.options,
        comp_mask: 0,
    };
    // SAFETY: the caller's; `ece` is valid for the call.
    done(unsafe { set(qp.as_ptr(), &raw mut ece) })
}

/// Whether the device promises that WRITEs of the peer arrive here in order, each in itself; `None`
/// where the library lacks the query.
pub(in super::super) unsafe fn query_qp_data_in_order(qp: NonNull<ibv_qp>) -> Option<bool> {
    let query = later_verbs().query_qp_data_in_order?;
    // SAFETY: the caller's.
    Some(unsafe { query(qp.as_ptr(), ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0) } == 1)
}

/// Whether the loaded library can exchange ECE options.
pub(in super::super) fn has_ece() -> bool {
    let verbs = later_verbs();
    verbs.query_ece.is_some() && verbs.set_ece.is_some()
}
