//! RDMA devices of this host: the list, opening one, its limits, the state of its ports.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::error::{VerbsError, remedy};
use super::events::{DeviceEvent, element};
use super::ffi::{self, bits};
use super::sysfs::Link;
use tidewater_protocol::mutants;
use tidewater_runtime::sync::{Arc, AtomicBool, Ordering};

/// An open device. Shared by `Arc`; closed when the last object made with it is gone.
///
/// # Thread safety
/// libibverbs is thread-safe: calls on one context from several threads need no lock of ours.
///
/// Its events are for the log ([`Device::log_events`]), but for one: a fatal event marks the device as
/// failed. It is then shared no more, and the next lane opens it again.
///
/// # Invariants
/// - `context` was opened and is not closed; every object made with it holds an `Arc` of this.
#[doc(alias = "ibv_context")]
pub struct Device {
    context: NonNull<ffi::ibv_context>,
    name: Arc<str>,
    limits: DeviceLimits,
    /// Nothing goes over this opening of the device any more.
    failed: AtomicBool,
}

/// Events taken from a device in one turn, before other connections have theirs.
const TURN_EVENTS: usize = 64;

/// Limits of a device: numbers of a fixed size, read once from the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "ibv_device_attr")]
pub struct DeviceLimits {
    /// Maximum number of queue pairs.
    pub queue_pairs: u32,
    /// Work requests of a queue.
    pub requests: u32,
    /// Elements of a work request's gather or scatter list.
    pub elements: u32,
    /// Elements of a READ's scatter list.
    pub read_elements: u32,
    /// Completions of a completion queue.
    pub completions: u32,
    /// Maximum number of memory regions.
    pub regions: u32,
    /// Bytes of a memory region.
    pub region_bytes: u64,
    /// READs and atomics that a queue pair can have in flight at once.
    pub reads_out: u8,
    /// READs and atomics that a queue pair can answer at once.
    pub reads: u8,
    /// Whether it has memory windows of type 2.
    pub windows: bool,
    /// Whether it has 64-bit atomics.
    pub atomics: bool,
    /// Whether a request behind `IBV_SEND_FENCE` is sure to be sent. Soft-RoCE forgets it at times.
    /// When it repeats a READ while handling its answer, it counts one in flight that is none, and the
    /// fence never opens (ADR 0019).
    pub fences: bool,
}

/// Vendor id of Soft-RoCE devices.
const SOFT_ROCE_VENDOR: u32 = 0xff_ffff;

/// State of a port at the time of the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias = "ibv_port_attr")]
pub struct PortState {
    /// Whether the port is up.
    pub active: bool,
    /// Link layer of the port.
    pub link: Link,
    /// Address within an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Payload bytes of a packet: 256 to 4096.
    pub mtu: u16,
    /// Bytes of the longest message.
    pub message_bytes: u32,
}

// SAFETY: libibverbs is thread-safe on one context (see the type), and the pointer is only freed by
// `drop`, which has the last reference.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// Returns the names of the devices that libibverbs can drive, in its order; at least one.
///
/// # Errors
/// [`VerbsError::NoDevice`] when there are none, or no library, or no RDMA in the kernel; the error
/// names the case. It is the only error on a host without RDMA.
#[doc(alias = "ibv_get_device_list")]
pub fn devices() -> Result<Vec<String>, VerbsError> {
    let list = ffi::DeviceList::get().map_err(absent)?;
    let names: Vec<String> = list
        .iter()
        .map(|(_, name)| name.to_string_lossy().into_owned())
        .collect();
    if names.is_empty() {
        return Err(NONE);
    }
    Ok(names)
}

/// The kernel has RDMA, but libibverbs has no device.
const NONE: VerbsError = VerbsError::NoDevice {
    why: "libibverbs finds no device; is there an RDMA NIC, and its provider installed \
          (ibverbs-providers)? `ibv_devices` shows them",
};

/// Error for a device list that cannot be read.
fn absent(errno: Errno) -> VerbsError {
    let why = match errno {
        Errno::OPNOTSUPP => "libibverbs.so.1 could not be loaded; install rdma-core (libibverbs1)",
        Errno::NOSYS | Errno::NOENT => {
            "the kernel has no RDMA; load the NIC's driver and ib_uverbs"
        }
        Errno::PERM | Errno::ACCESS => {
            "/dev/infiniband may not be opened; a container needs --device /dev/infiniband"
        }
        _ => "libibverbs could not list the devices; look at dmesg and at `ibv_devices`",
    };
    VerbsError::NoDevice { why }
}

impl Device {
    /// Opens a device by name (`mlx5_0`, `rxe0`).
    ///
    /// # Errors
    /// [`VerbsError::NoDevice`], [`VerbsError::NoSuchDevice`], or [`VerbsError::Call`] when it may
    /// not be opened.
    #[doc(alias = "ibv_open_device")]
    pub fn open(name: &str) -> Result<Arc<Self>, VerbsError> {
        let list = ffi::DeviceList::get().map_err(absent)?;
        let Some((device, _)) = list.iter().find(|(_, n)| n.to_bytes() == name.as_bytes()) else {
            return Err(VerbsError::NoSuchDevice {
                wanted: name.into(),
                found: devices()?.join(", ").into(),
            });
        };
        let name: Arc<str> = name.into();
        let call = |verb, errno| VerbsError::Call {
            verb,
            device: Arc::clone(&name),
            errno,
            remedy: remedy(errno),
        };
        // SAFETY: `device` is an entry of `list`, which is freed below.
        let context =
            unsafe { ffi::open_device(device) }.map_err(|e| call("ibv_open_device", e))?;
        // SAFETY: just opened.
        let limits = match unsafe { ffi::query_device(context) } {
            Ok(attributes) => DeviceLimits::new(&attributes),
            Err(e) => {
                // SAFETY: opened above and shared with no other code.
                let _ = unsafe { ffi::close_device(context) };
                return Err(call("ibv_query_device", e));
            }
        };
        let opened = Self {
            context,
            name,
            limits,
            failed: AtomicBool::new(false),
        };
        let events = opened.events();
        rustix::fs::fcntl_getfl(events)
            .and_then(|flags| rustix::fs::fcntl_setfl(events, flags | OFlags::NONBLOCK))
            .map_err(|e| opened.failed("fcntl of a device's events", e))?;
        Ok(Arc::new(opened))
    }

    /// Returns a descriptor that is readable when the device has an event. Does not block.
    pub fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: open (invariant).
        let fd = unsafe { ffi::async_fd(self.context) };
        // SAFETY: the descriptor is the context's and open as long as it is, which `self` is.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Takes an event, if there is one. Each event is returned once, to any caller. Cost: a system
    /// call.
    ///
    /// # Errors
    /// [`VerbsError::Call`]: the device is gone, and no event will come any more.
    #[doc(alias = "ibv_get_async_event")]
    #[doc(alias = "ibv_ack_async_event")]
    pub fn take_event(&self) -> Result<Option<DeviceEvent>, VerbsError> {
        // SAFETY: open (invariant).
        match unsafe { ffi::take_async_event(self.context, element) } {
            Ok((number, of)) => {
                let event = DeviceEvent::new(&self.name, number, of);
                self.note(&event);
                Ok(Some(event))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(self.failed("ibv_get_async_event", errno)),
        }
    }

    /// Logs the pending events, at most 64, one line each with its remedy. A fatal one, or a device that is
    /// gone, marks the device as failed. Cost: a system call for each event, and one.
    pub fn log_events(&self) {
        for _ in 0..TURN_EVENTS {
            match self.take_event() {
                Ok(Some(event)) => event.log(),
                Ok(None) => return,
                Err(error) => {
                    if !self.has_failed() {
                        tracing::error!(%error, "RDMA device is gone");
                    }
                    return self.retire();
                }
            }
        }
    }

    /// Marks the device as failed if the event is fatal.
    fn note(&self, event: &DeviceEvent) {
        if event.is_fatal() {
            self.retire();
        }
    }

    /// Marks the device as failed: ports of it are shared no more, and the next lane opens it again. It is
    /// closed when the last object made with it is gone.
    pub fn retire(&self) {
        // A flag alone: no data goes with it, and a lane that is made meanwhile breaks and is made again.
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Whether the device was marked as failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Returns the name of the device.
    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the limits of the device.
    pub const fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    /// Returns the number of completion vectors: interrupts that completion queues can be spread over.
    pub fn completion_vectors(&self) -> u32 {
        // SAFETY: open (invariant).
        unsafe { ffi::completion_vectors(self.context) }
    }

    /// Whether libibverbs can exchange the options of enhanced connection establishment (ECE).
    pub fn has_ece(&self) -> bool {
        ffi::has_ece()
    }

    /// Queries the current state of a port; ports are counted from 1. Cost: a system call.
    ///
    /// # Errors
    /// [`VerbsError::Call`] when there is no such port.
    #[doc(alias = "ibv_query_port")]
    pub fn port(&self, port: u8) -> Result<PortState, VerbsError> {
        // SAFETY: open (invariant).
        let attributes = unsafe { ffi::query_port(self.context, port) };
        let a = attributes.map_err(|e| self.failed("ibv_query_port", e))?;
        Ok(PortState {
            active: a.state == bits::PORT_ACTIVE,
            link: match a.link_layer {
                bits::LINK_INFINIBAND | 0 => Link::InfiniBand,
                _ => Link::Ethernet,
            },
            lid: a.lid,
            mtu: mtu_bytes(a.active_mtu),
            message_bytes: a.max_msg_sz,
        })
    }

    /// The context, for the objects made with it.
    pub(super) const fn context(&self) -> NonNull<ffi::ibv_context> {
        self.context
    }

    /// Error for a verb that failed on this device.
    #[cold]
    pub(super) fn failed(&self, verb: &'static str, errno: Errno) -> VerbsError {
        VerbsError::Call {
            verb,
            device: Arc::clone(&self.name),
            errno,
            remedy: remedy(errno),
        }
    }

    /// Warns that an object of this device could not be released: it stays allocated.
    #[cold]
    pub(super) fn leaked(&self, verb: &'static str, errno: Errno) {
        tracing::error!(device = %self.name, verb, %errno, "could not be given back, it is kept");
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: open (invariant), and the last reference: everything made with it is gone.
        if let Err(errno) = unsafe { ffi::close_device(self.context) } {
            self.leaked("ibv_close_device", errno);
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name).finish()
    }
}

impl DeviceLimits {
    fn new(a: &ffi::ibv_device_attr) -> Self {
        let count = |n: i32| u32::try_from(n).unwrap_or(0);
        let small = |n: i32| n.clamp(0, i32::from(u8::MAX)) as u8;
        let mask = mutants::device_mask();
        let elements = mask.read_elements.unwrap_or(u32::MAX);
        Self {
            queue_pairs: count(a.max_qp),
            requests: count(a.max_qp_wr),
            elements: count(a.max_sge),
            read_elements: count(a.max_sge_rd).min(elements),
            completions: count(a.max_cqe),
            regions: count(a.max_mr),
            region_bytes: a.max_mr_size.min(mask.region_bytes.unwrap_or(u64::MAX)),
            reads_out: small(a.max_qp_init_rd_atom),
            reads: small(a.max_qp_rd_atom),
            windows: a.device_cap_flags & (bits::WINDOW_2A | bits::WINDOW_2B) != 0
                && !mask.no_windows,
            atomics: a.atomic_cap != bits::NO_ATOMICS && !mask.no_atomics,
            fences: a.vendor_id != SOFT_ROCE_VENDOR,
        }
    }
}

/// Payload bytes of a packet for an MTU number; 0 for an unknown number.
const fn mtu_bytes(number: u32) -> u16 {
    match number {
        1..=5 => 128 << number,
        _ => 0,
    }
}

/// MTU number of the largest packet of at most `bytes`.
pub(super) const fn mtu_number(bytes: u16) -> Option<u32> {
    match bytes {
        0..256 => None,
        256..512 => Some(1),
        512..1024 => Some(2),
        1024..2048 => Some(3),
        2048..4096 => Some(4),
        4096.. => Some(5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_sizes_are_rounded_down_to_those_there_are() {
        assert_eq!([1, 2, 3, 4, 5].map(mtu_bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!([0, 6, u32::MAX].map(mtu_bytes), [0; 3]);
        for number in 1..=5 {
            assert_eq!(mtu_number(mtu_bytes(number)), Some(number));
            assert_eq!(
                mtu_number(mtu_bytes(number) - 1),
                (number > 1).then_some(number - 1)
            );
        }
        assert_eq!([0, 255].map(mtu_number), [None; 2]);
        assert_eq!(mtu_number(u16::MAX), Some(5));
    }

    #[test]
    #[ignore = "needs an RDMA device: ci/softroce.sh"]
    fn fatal_event_alone_retires_the_device() {
        use super::super::OpenPort;
        let here = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        let open_port = OpenPort::for_address(here, None).unwrap();
        let device = open_port.device();
        for number in (0..20).filter(|&number| number != 8) {
            device.note(&DeviceEvent::new(device.name(), number, 1));
        }
        let shared = OpenPort::for_address(here, None).unwrap();
        assert!(Arc::ptr_eq(&shared, &open_port), "no other event is fatal");
        device.note(&DeviceEvent::new(device.name(), 8, 0));
        let again = OpenPort::for_address(here, None).unwrap();
        assert_eq!(again.device().name(), device.name());
        assert!(!Arc::ptr_eq(again.device(), device), "it was opened again");
        assert!(!again.device().has_failed());
    }

    #[test]
    fn each_reason_for_no_device_has_its_words() {
        for (errno, word) in [
            (Errno::OPNOTSUPP, "libibverbs.so.1"),
            (Errno::NOSYS, "ib_uverbs"),
            (Errno::NOENT, "ib_uverbs"),
            (Errno::ACCESS, "--device"),
            (Errno::IO, "dmesg"),
        ] {
            let e = absent(errno);
            assert!(matches!(e, VerbsError::NoDevice { .. }));
            assert!(e.to_string().contains(word), "{e}");
        }
    }
}
