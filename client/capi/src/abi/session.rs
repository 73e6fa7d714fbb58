//! Calls that open, query and close sessions.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use tidewater::{ClientError, JoinOptions, Joined};
use tidewater_protocol::limits::FILE_CALL_TIMEOUT;

use crate::convert::{self, SessionChoices};
use crate::error::Failure;
use crate::raw;
pub use crate::session::tw_session;
use crate::session::{InCallback, run};
use crate::types::{tw_counters, tw_session_info, tw_session_options, tw_status};

/// Joins a job as a worker and opens a session with every server. `options` may be null: the job
/// that the environment names, or that of the processes which mpirun, srun or their like started with
/// this one. On failure `*session` is null. Waits for processes that are starting, up to `join_timeout_s`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_open(
    options: *const tw_session_options,
    session: *mut *mut tw_session,
) -> tw_status {
    run("tw_session_open", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::out(session, "the place for the session") }?;
        *session = std::ptr::null_mut();
        // SAFETY: the contract of the module.
        *session = Box::into_raw(unsafe { join(options, false) }?);
        Ok(())
    })
}

/// Joins a job as an observer and opens a session with every server. An observer opens tables and pulls in
/// every mode, at any time, and is no member of a clock or a barrier: no worker waits for it, also not if it
/// is stopped. It has no rank, and keys without a row have initial values. Calls that change something
/// are TW_ERR_REFUSED. `options`: as for tw_session_open; rank, workers and synchronisation have no effect.
/// Without a coordinator in them TIDEWATER_COORDINATOR and TIDEWATER_TOKEN_FILE name the job. On failure
/// `*session` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_observe(
    options: *const tw_session_options,
    session: *mut *mut tw_session,
) -> tw_status {
    run("tw_session_observe", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::out(session, "the place for the session") }?;
        *session = std::ptr::null_mut();
        // SAFETY: the contract of the module.
        *session = Box::into_raw(unsafe { join(options, true) }?);
        Ok(())
    })
}

/// Copies `length` bytes at `bytes` from rank 0 to all processes of a program, as MPI_Bcast does. Returns 0 if
/// it has.
#[allow(non_camel_case_types, reason = "it is the name in tidewater.h")]
pub type tw_broadcast_fn =
    Option<unsafe extern "C" fn(bytes: *mut c_void, length: usize, context: *mut c_void) -> c_int>;

/// Begins a job of a program that counts its processes itself, as by MPI, and opens this process's session:
/// process `rank` of `size`. All are workers, by these ranks. `servers` of them, spread evenly, are servers
/// too, on threads of the library; 0: all. It needs no launcher, no variable and no file. `broadcast` is called
/// once in each process, with `context`, also where arguments are wrong; the bytes are a secret. `options` may be
/// null; coordinator, token_file, rank and workers of it stay unset. End the session by tw_leave. On failure
/// `*session` is null; where it is that of rank 0 before the broadcast, all fail.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_begin(
    options: *const tw_session_options,
    rank: u32,
    size: u32,
    servers: u32,
    broadcast: tw_broadcast_fn,
    context: *mut c_void,
    session: *mut *mut tw_session,
) -> tw_status {
    run("tw_begin", || {
        let Some(broadcast) = broadcast else {
            return Err(Failure::new(tw_status::TW_ERR_NULL, "broadcast is null"));
        };
        let copy = |bytes: &mut [u8]| {
            // SAFETY: the buffer is as long as said and lives through the call.
            match unsafe { broadcast(bytes.as_mut_ptr().cast(), bytes.len(), context) } {
                0 => Ok(()),
                code => Err(ClientError::Launch(
                    format!("the program's broadcast has failed with {code}").into(),
                )),
            }
        };
        // SAFETY: the contract of the module.
        let (session, wanted, choices) = match unsafe { begin_arguments(options, session) } {
            Ok(arguments) => arguments,
            Err(failure) => {
                // The others wait in the broadcast. An error of it says less than this one.
                let _ = JoinOptions::begin_failed(copy);
                return Err(failure);
            }
        };
        let job = wanted.begin(rank, size, servers, copy)?;
        *session = Box::into_raw(tw_session::begin(job, &choices)?);
        Ok(())
    })
}

/// The checked arguments of tw_begin.
///
/// # Safety
/// The contract of the module.
unsafe fn begin_arguments<'a>(
    options: *const tw_session_options,
    session: *mut *mut tw_session,
) -> Result<(&'a mut *mut tw_session, JoinOptions, SessionChoices), Failure> {
    // SAFETY: the contract of the module.
    let session = unsafe { raw::out(session, "the place for the session") }?;
    *session = std::ptr::null_mut();
    // SAFETY: the contract of the module.
    let (wanted, choices) = unsafe { parse(options, false) }?;
    let wanted = JoinOptions {
        worker_only: false,
        ..wanted
    };
    Ok((session, wanted, choices))
}

/// Ends a session of tw_begin: tw_finish, then tw_session_close; then it waits for the workers of all processes,
/// because coordinator and servers may be in this one. Call it in all processes, before MPI_Finalize; free the
/// handle afterwards. It also ends a session of tw_session_open, without a wait for others. After a failure it
/// may be repeated, and goes on where it failed; of a session that has left it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_leave(session: *mut tw_session) -> tw_status {
    run("tw_leave", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        match session.with(|open| Ok(open.client.finish()?)) {
            Ok(()) => session.close()?,
            // The call before, or tw_session_close, has come so far.
            Err(failure) if failure.status == tw_status::TW_ERR_CLOSED => {}
            Err(failure) => return Err(failure),
        }
        session.leave()
    })
}

/// Opens a session for a further thread of this worker: of the same rank and thread level, with clocks that
/// begin at those of `session`, which has flushed. Each session ticks by itself; a worker has ended an
/// iteration when each of its sessions has. With TW_THREAD_SINGLE and TW_THREAD_FUNNELED the sibling is of
/// the thread that makes its first call. Sessions of a worker call at the same time without waiting for each
/// other. Barriers and collective calls are those of the first session: TW_ERR_THREAD on a sibling. Call
/// tw_finish on each sibling before the first session, then close it: one that is closed without loses its
/// worker. On failure `*sibling` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_sibling(
    session: *mut tw_session,
    sibling: *mut *mut tw_session,
) -> tw_status {
    run("tw_session_sibling", || {
        // SAFETY: the contract of the module.
        let sibling = unsafe { raw::out(sibling, "the place for the sibling") }?;
        *sibling = std::ptr::null_mut();
        // SAFETY: the contract of the module.
        *sibling = Box::into_raw(unsafe { raw::session(session) }?.sibling()?);
        Ok(())
    })
}

/// Ends the session: connections and memory are given back, tickets and pulls with them. What was pushed
/// stays pushed. The handle stays, and every later call of it is TW_ERR_CLOSED. It does not say that
/// the worker is done: tw_finish does, before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_close(session: *mut tw_session) -> tw_status {
    run("tw_session_close", || {
        // SAFETY: the contract of the module.
        unsafe { raw::session(session) }?.close()
    })
}

/// Closes the session if it is open, frees the handle, and sets `*session` to null. A handle that is null
/// already is none: done. In a forked child nothing of the parent's session is touched.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_free(session: *mut *mut tw_session) -> tw_status {
    run("tw_session_free", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::out(session, "the place of the session") }?;
        if session.is_null() {
            return Ok(());
        }
        // SAFETY: the contract of the module.
        unsafe { raw::session(*session) }?;
        InCallback::check()?;
        // SAFETY: it has the mark of a session, which only `tw_session_open` gives, to a box; its
        // caller frees it once, and the mark of a freed one is another.
        let owned = unsafe { Box::from_raw(*session) };
        *session = std::ptr::null_mut();
        owned.free();
        Ok(())
    })
}

/// Rank (of an observer a number from 65536), workers, servers, transport, thread. Set `info->size` before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_describe(
    session: *mut tw_session,
    info: *mut tw_session_info,
) -> tw_status {
    run("tw_session_describe", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let answer = session.with(|open| {
            let client = &mut open.client;
            Ok(tw_session_info {
                size: size_of::<tw_session_info>(),
                rank: client.rank().0,
                workers: client.workers(),
                servers: u32::try_from(client.servers()).unwrap_or(u32::MAX),
                transport: convert::transport_code(client.transport()),
                thread_level: session.level() as i32,
                thread: client.thread(),
            })
        })?;
        // SAFETY: the contract of the module.
        unsafe { raw::answer(info, "info", &answer) }
    })
}

/// What the session did so far. Set `counters->size` before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_counters(
    session: *mut tw_session,
    counters: *mut tw_counters,
) -> tw_status {
    run("tw_session_counters", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        let counts = session.with(|open| Ok(convert::counters(open.client.counters())))?;
        // SAFETY: the contract of the module.
        unsafe { raw::answer(counters, "counters", &counts) }
    })
}

/// Takes in what has arrived and sends on what a socket did not take at once; never waits for an answer.
/// Every call does this too: only a program that computes for seconds between calls, over TCP, has use for
/// it. `progress_interval_us` has a thread make these calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_progress(session: *mut tw_session) -> tw_status {
    run("tw_progress", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        session.with(|open| Ok(open.client.progress()?))
    })
}

/// Lets up to `frames` frames of pushes of rows leave for an applier together (default 1: each push leaves before
/// its call returns; 0 is 1). A push of one row is one frame. Pushes that are held leave when the batch is
/// full or has 32 KiB, and with each call that waits, pulls, ticks, flushes, saves, or is tw_progress. They are
/// lost if the session is closed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_batch_pushes(session: *mut tw_session, frames: u32) -> tw_status {
    run("tw_batch_pushes", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        session.with(|open| {
            open.client.batch_pushes(frames);
            Ok(())
        })
    })
}

/// This worker is done: waits for its pushes like tw_flush, leaves every clock, and says so to the
/// coordinator, so that no worker waits for it. On a sibling its thread is done. Close the session
/// afterwards. TW_ERR_THREAD while siblings are open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_finish(session: *mut tw_session) -> tw_status {
    run("tw_finish", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        session.with(|open| Ok(open.client.finish()?))
    })
}

/// This worker cannot go on: the job ends, and its end names `reason`, of which the first 4,095 bytes count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_fail(session: *mut tw_session, reason: *const c_char) -> tw_status {
    run("tw_fail", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let reason = unsafe { raw::reason(reason) }?;
        session.with(|open| Ok(open.client.fail(&reason)?))
    })
}

/// Saves all tables into a directory that all servers see; on one worker, between barriers. `rows` and
/// `bytes`, which may be null, get what was written. `timeout_s` 0: half an hour.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_save(
    session: *mut tw_session,
    directory: *const c_char,
    timeout_s: f64,
    rows: *mut u64,
    bytes: *mut u64,
) -> tw_status {
    run("tw_save", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let directory = unsafe { raw::text(directory, "the directory") }?;
        let timeout = convert::seconds("timeout_s", timeout_s)?;
        let saved = session.with(|open| {
            let timeout = timeout.unwrap_or(FILE_CALL_TIMEOUT);
            Ok(open.client.save(directory, timeout)?)
        })?;
        // SAFETY: the contract of the module.
        unsafe { raw::answer_value(rows, "the place for the rows", saved.rows) }?;
        // SAFETY: the contract of the module.
        unsafe { raw::answer_value(bytes, "the place for the bytes", saved.bytes) }
    })
}

/// Loads the tables of a saved model, on one worker, before they are created; open them afterwards.
/// `tables`, which may be null, gets their number. `timeout_s` 0: half an hour.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_load(
    session: *mut tw_session,
    directory: *const c_char,
    timeout_s: f64,
    tables: *mut u64,
) -> tw_status {
    run("tw_load", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let directory = unsafe { raw::text(directory, "the directory") }?;
        let timeout = convert::seconds("timeout_s", timeout_s)?;
        let loaded = session.with(|open| {
            let timeout = timeout.unwrap_or(FILE_CALL_TIMEOUT);
            Ok(open.client.load(directory, timeout)?)
        })?;
        let count = loaded.tables.len() as u64;
        // SAFETY: the contract of the module.
        unsafe { raw::answer_value(tables, "the place for the number of tables", count) }
    })
}

/// Joins the job of these options and opens a session.
///
/// # Safety
/// The contract of the module.
unsafe fn join(
    options: *const tw_session_options,
    observer: bool,
) -> Result<Box<tw_session>, Failure> {
    // SAFETY: the contract of the module.
    let (wanted, choices) = unsafe { parse(options, observer) }?;
    let Joined::Worker(job) = wanted.join()? else {
        let what = "the library has joined as a server: a defect, please report it";
        return Err(Failure::new(tw_status::TW_ERR_PANIC, what));
    };
    tw_session::open(&job, &choices)
}

/// Parses the options of a session; null means the defaults.
///
/// # Safety
/// The contract of the module.
unsafe fn parse(
    options: *const tw_session_options,
    observer: bool,
) -> Result<(JoinOptions, SessionChoices), Failure> {
    // SAFETY: the contract of the module.
    let options = unsafe { raw::options_or_default(options) }?;
    let optional = |pointer, what| {
        // SAFETY: the contract of the module.
        unsafe { raw::optional_text(pointer, what) }
    };
    // Of 64-bit processes.
    let bytes = |bytes: u64| (bytes != 0).then(|| usize::try_from(bytes).unwrap_or(usize::MAX));
    let wanted = JoinOptions {
        coordinator: optional(options.coordinator, "coordinator")?.map(str::to_owned),
        token_file: optional(options.token_file, "token_file")?.map(Into::into),
        namespace: optional(options.job_namespace, "job_namespace")?.map(str::to_owned),
        rdma_device: optional(options.rdma_device, "rdma_device")?
            .map(convert::rdma_device)
            .transpose()?,
        rank: (options.has_rank != 0 && !observer).then_some(options.rank),
        workers: (options.workers != 0).then_some(options.workers),
        transport: convert::transport(options.transport)?,
        join_timeout: convert::seconds("join_timeout_s", options.join_timeout_s)?,
        worker_only: true,
        observer,
        ring_bytes: bytes(options.ring_bytes),
        memory_budget: bytes(options.memory_budget),
        ..JoinOptions::default()
    };
    // An error in the options is reported at once, not after the wait for a job's processes.
    let sync = convert::sync(options.sync, options.staleness)?;
    let level = convert::thread_level(options.thread_level)?;
    let timeout = convert::seconds("timeout_s", options.timeout_s)?;
    let clock_timeout = convert::seconds("clock_timeout_s", options.clock_timeout_s)?;
    let interval = u64::from(options.progress_interval_us);
    let choices = SessionChoices {
        sync,
        level,
        timeout,
        clock_timeout,
        progress_interval: (interval != 0).then(|| Duration::from_micros(interval)),
    };
    Ok((wanted, choices))
}
