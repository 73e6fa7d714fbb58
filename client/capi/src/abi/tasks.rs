//! Calls that take tasks from a queue of the coordinator.

use std::ffi::c_char;

use tidewater_tasks::Tasks;

use super::session::tw_session;
use crate::convert;
use crate::error::Failure;
use crate::open::{NO_TASK, OpenQueue};
use crate::raw;
use crate::session::run;
use crate::types::{tw_status, tw_task_info, tw_task_options, tw_tasks};

/// Opens the queue of tasks over the records 0 to `records`, which the program reads itself. Of the workers that open
/// it the first one's number counts. All give the same options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_tasks_open(
    session: *mut tw_session,
    options: *const tw_task_options,
    records: u64,
    tasks: *mut tw_tasks,
) -> tw_status {
    run("tw_tasks_open", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let tasks = unsafe { raw::out(tasks, "the place for the queue") }?;
        *tasks = 0;
        // SAFETY: the contract of the module.
        let options = unsafe { raw::options(options, "options") }?;
        // SAFETY: the contract of the module.
        let name = unsafe { raw::text(options.name, "name") }?;
        let options = convert::task_options(name, &options)?;
        *tasks = session.with(|open| {
            let queue = OpenQueue {
                tasks: Tasks::count(&mut open.client, records, &options)?,
                current: None,
            };
            open.queues.add(queue)
        })?;
        Ok(())
    })
}

/// Takes the next task: `*given` becomes 1, or 0 after the last one. Waits while other workers have the last tasks,
/// which they may not finish. A task that was taken before and is not reported has failed. Until tw_tasks_done servers
/// hold what the session pushes; then all of it takes effect, or nothing. Ticks, functions, deletions and collective
/// calls fail meanwhile, unless `at_least_once`. Set `task->size` before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_tasks_next(
    session: *mut tw_session,
    tasks: tw_tasks,
    task: *mut tw_task_info,
    given: *mut i32,
) -> tw_status {
    run("tw_tasks_next", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let given = unsafe { raw::out(given, "given") }?;
        *given = 0;
        // Before a task is taken.
        // SAFETY: the contract of the module.
        unsafe { raw::answer_size(task, "the task") }?;
        let info = session.with(|open| {
            let queue = open.queues.get_mut(tasks)?;
            // The queue reports it as failed.
            queue.current = None;
            queue.current = queue.tasks.next(&mut open.client)?;
            Ok(queue.current.as_ref().map(convert::task_info))
        })?;
        let Some(info) = info else {
            return Ok(());
        };
        // SAFETY: the contract of the module.
        unsafe { raw::answer(task, "the task", &info) }?;
        *given = 1;
        Ok(())
    })
}

/// Reports the task as finished, with its number of records. `*counted` becomes 1 if it counts: its pushes are
/// applied then. It becomes 0, and they are dropped, if the task was taken back since its time was over, or another
/// worker has finished it first. `counted` may be null. After TW_ERR_DEADLINE the report may have arrived: call it
/// again. That repeats the report with the first number of records, and has the answer of the first report. Without
/// that call tw_tasks_next and tw_tasks_close repeat it. If the second call finds no task, the deadline was met before
/// the report: the task has failed then, and tw_tasks_fail, tw_tasks_next or tw_tasks_close reports that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_tasks_done(
    session: *mut tw_session,
    tasks: tw_tasks,
    records: u64,
    counted: *mut i32,
) -> tw_status {
    run("tw_tasks_done", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let counted = unsafe { raw::optional_out(counted, "counted") }?;
        let counts = session.with(|open| {
            let queue = open.queues.get_mut(tasks)?;
            if let Some(task) = queue.current.take() {
                return Ok(queue.tasks.done(&mut open.client, task, records)?);
            }
            let counts = queue.tasks.repeat_report(&mut open.client)?;
            counts.ok_or_else(|| Failure::argument(NO_TASK))
        })?;
        if let Some(counted) = counted {
            *counted = counts.into();
        }
        Ok(())
    })
}

/// Reports that the task failed by itself, with the reason (its first 4,095 bytes). Its pushes are dropped; it is given again, and left out
/// with this reason after too many failures. After an error the session still has the task: call it again, or take the
/// next task, or close the queue. A report that has arrived before costs the task no second try.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_tasks_fail(
    session: *mut tw_session,
    tasks: tw_tasks,
    reason: *const c_char,
) -> tw_status {
    run("tw_tasks_fail", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let reason = unsafe { raw::reason(reason) }?;
        session.with(|open| {
            let queue = open.queues.get_mut(tasks)?;
            let was_open = queue.tasks.fail_current(&mut open.client, &reason)?;
            queue.current = None;
            match was_open {
                true => Ok(()),
                false => Err(Failure::argument(NO_TASK)),
            }
        })
    })
}

/// Ends the use of the queue by this session; a task that is not reported has failed, and a report that got no answer
/// is repeated. The queue stays with the job. `*tasks` becomes zero, but after TW_ERR_DEADLINE: the queue is open as
/// before then, with its task; call it again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_tasks_close(
    session: *mut tw_session,
    tasks: *mut tw_tasks,
) -> tw_status {
    run("tw_tasks_close", || {
        // SAFETY: the contract of the module.
        let session = unsafe { raw::session(session) }?;
        // SAFETY: the contract of the module.
        let handle = unsafe { raw::out(tasks, "the place of the queue") }?;
        session.with(|open| {
            let queue = open.queues.get_mut(*handle)?;
            let reported = queue.report_all(&mut open.client);
            let is_late = |failure: &Failure| failure.status == tw_status::TW_ERR_DEADLINE;
            if !reported.as_ref().is_err_and(is_late) {
                // No later call can succeed where this one has failed.
                open.queues.remove(*handle)?;
                *handle = 0;
            }
            Ok(reported)
        })?
    })
}
