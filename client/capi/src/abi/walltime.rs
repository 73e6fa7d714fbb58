//! Calls that end a run before its batch system does.

use tidewater::walltime::Walltime;

use super::session::tw_session;
use crate::error::Failure;
use crate::raw;
use crate::session::run;
use crate::types::tw_status;

/// From now on, until the session is closed, SIGTERM and SIGUSR1, which batch systems send some time before
/// they kill, are noted and do not end the process; a handler that the program has is called too. The
/// only call that installs handlers: do not unload the library afterwards. All workers call it, before
/// their first step, and wait for each other. `every`: steps (ticks of domain 0) between two looks, the
/// same on all workers; 0 is 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_walltime_watch(session: *mut tw_session, every: u32) -> tw_status {
    run("tw_walltime_watch", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        session.with(|open| {
            if open.walltime.as_ref().is_some_and(|it| !it.is_ended()) {
                let text = "the session watches already; make one tw_walltime_watch, before the \
                            first step";
                return Err(Failure::argument(text));
            }
            open.walltime = Some(Walltime::watch(&mut open.client, every)?);
            Ok(())
        })
    })
}

/// At the start of each step, on all workers: `*over` becomes 1 if the run ends here, else 0. With TW_BSP and
/// TW_SSP it is the same for all workers at the same step, at most three looks after the signal.
/// Cost: a pull of two rows at each `every`-th step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_walltime_over(session: *mut tw_session, over: *mut i32) -> tw_status {
    run("tw_walltime_over", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let over = unsafe { raw::out(over, "over") }?;
        *over = 0;
        *over = session.with(|open| {
            let walltime = open.walltime.as_mut().ok_or_else(unwatched)?;
            Ok(walltime.over(&mut open.client)?.into())
        })?;
        Ok(())
    })
}

/// After the last step, on all workers, which wait for each other: `*signal` becomes the number of the signal
/// for which the run ended, the same for all, also if it came after the last look; 0 if there was none. Then
/// save, tw_finish, and exit with 128 + *signal. Signals are still noted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_walltime_end(session: *mut tw_session, signal: *mut i32) -> tw_status {
    run("tw_walltime_end", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let signal = unsafe { raw::out(signal, "signal") }?;
        *signal = 0;
        *signal = session.with(|open| {
            let walltime = open.walltime.as_mut().ok_or_else(unwatched)?;
            Ok(walltime.end(&mut open.client)?.unwrap_or_default())
        })?;
        Ok(())
    })
}

fn unwatched() -> Failure {
    Failure::argument("the session does not watch; call tw_walltime_watch before the first step")
}
