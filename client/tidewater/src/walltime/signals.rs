//! Records SIGTERM and SIGUSR1 while a [`Signals`] value lives.
//!
//! Signals belong to the process, so this state does too. Handlers are installed at the first use and
//! never removed, because other code may have installed its own over them. Without a [`Signals`] value
//! they do what happened before: the default action, or the handler of the program.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use signal_hook::consts::{SIGTERM, SIGUSR1};
use signal_hook::flag::{register_conditional_default, register_usize};
use tidewater_runtime::sync::{Arc, AtomicBool, AtomicUsize, Ordering};

use crate::error::{ClientError, SystemError};

/// Signals that batch systems send some time before they kill: SIGTERM and SIGUSR1.
const NOTED: [i32; 2] = [SIGTERM, SIGUSR1];

/// Recorder of SIGTERM and SIGUSR1: while such a value lives, they are recorded and do not end the process.
///
/// # Example
/// ```
/// use tidewater::walltime::Signals;
///
/// # fn main() -> Result<(), tidewater::ClientError> {
/// let signals = Signals::catch()?;
/// assert_eq!(signals.came(), None);
/// # const SIGUSR1: i32 = signal_hook::consts::SIGUSR1;
/// signal_hook::low_level::raise(SIGUSR1).expect("a signal"); // as a batch system would
/// assert_eq!(signals.came(), Some(SIGUSR1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Signals {
    came: Arc<AtomicUsize>,
}

static PROCESS: Mutex<Process> = Mutex::new(Process {
    handlers: None,
    asking: 0,
});

struct Process {
    handlers: Option<Handlers>,
    asking: usize,
}

/// State that the signal handlers of the process access.
struct Handlers {
    /// Number of the last signal; 0 if none came.
    came: Arc<AtomicUsize>,
    /// Whether no [`Signals`] value lives.
    default: Arc<AtomicBool>,
}

impl Signals {
    /// Starts to record signals. Earlier signals are not seen, unless another value recorded them. A handler that
    /// the program had installed before is also called.
    ///
    /// # Errors
    /// [`ClientError::Environment`] when the system does not let them be caught.
    pub fn catch() -> Result<Self, ClientError> {
        let failed = |source| {
            let op = "catch signals";
            let remedy = None;
            ClientError::Environment(SystemError { op, source, remedy }.into())
        };
        let mut process = process();
        if process.handlers.is_none() {
            process.handlers = Some(Handlers::install().map_err(failed)?);
        }
        let Process { handlers, asking } = &mut *process;
        let came = handlers.as_ref().map(|handlers| handlers.ask(*asking));
        *asking += 1;
        Ok(Self {
            came: came.unwrap_or_default(),
        })
    }

    /// Number of the last recorded signal; `None` if none came.
    pub fn came(&self) -> Option<i32> {
        let came = self.came.load(Ordering::Relaxed);
        i32::try_from(came).ok().filter(|&signal| signal != 0)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let mut process = process();
        process.asking -= 1;
        if process.asking == 0
            && let Some(handlers) = &process.handlers
        {
            handlers.default.store(true, Ordering::Relaxed);
        }
    }
}

impl Handlers {
    fn install() -> io::Result<Self> {
        let (came, default) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let others = handled();
        for signal in NOTED {
            if others & 1 << (signal - 1) == 0 {
                register_conditional_default(signal, Arc::clone(&default))?;
            }
            let number = usize::try_from(signal).unwrap_or_default();
            register_usize(signal, Arc::clone(&came), number)?;
        }
        Ok(Self { came, default })
    }

    /// Registers one more [`Signals`] value; `others` is the number of living ones. The first one clears the record
    /// and disables the default action. Returns the shared number of the last signal.
    fn ask(&self, others: usize) -> Arc<AtomicUsize> {
        if others == 0 {
            self.came.store(0, Ordering::Relaxed);
            self.default.store(false, Ordering::Relaxed);
        }
        Arc::clone(&self.came)
    }
}

fn process() -> MutexGuard<'static, Process> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Mask of the signals that the program handles or ignores: bit n-1 stands for signal n. It is 0 if `/proc` is
/// unreadable.
fn handled() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let masks = status.lines().filter_map(|line| {
        let mask = line
            .strip_prefix("SigIgn:")
            .or_else(|| line.strip_prefix("SigCgt:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    masks.fold(0, |all, mask| all | mask)
}
