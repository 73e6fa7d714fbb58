//! Sample messages of tasks.

use super::super::*;

/// Returns a task with a range of records of a file.
pub(in crate::wire::control) fn task() -> Task {
    Task {
        delivery: 77,
        number: 1_000,
        kind: TaskKind::Train,
        epoch: 2,
        shard: TaskShard {
            path: "data/part-0.gz".into(),
            first: 4_096,
            end: 8_192,
            unit: TaskUnit::Bytes,
        },
        failures: 1,
    }
}

/// Returns a valid definition of a task queue.
pub(in crate::wire::control) fn queue_spec() -> QueueSpec {
    QueueSpec {
        name: "train".into(),
        kind: TaskKind::Train,
        source: "data/part-*.gz".into(),
        task_size: 4_096,
        epochs: 3,
        strict_epochs: false,
        seed: Some(5),
        finals: vec![TaskKind::Save, TaskKind::End],
        failures_max: 3,
        timeout_ms: 300_000,
        timeout_factor: 10,
        straggler_ms: 5_000,
        straggler_factor: 2,
        losses_max: 3,
        held_max: 4,
        steps_max: 1_000,
        records: None,
        record_seed: None,
    }
}

/// Returns one request of each variant about tasks.
pub(in crate::wire::control) fn task_requests() -> Vec<TaskRequest> {
    let queue = 1;
    vec![
        TaskRequest::Open {
            spec: queue_spec(),
            shards: None,
        },
        TaskRequest::Take {
            queue,
            wait_ms: 500,
        },
        TaskRequest::Done {
            queue,
            delivery: 77,
            thread: 0,
            records: 128,
            pushed: true,
        },
        TaskRequest::Failed {
            queue,
            delivery: 78,
            reason: "data/part-0.gz is gone".into(),
        },
        TaskRequest::Status { queue },
    ]
}

/// Returns one answer of each variant about tasks.
pub(in crate::wire::control) fn task_answers() -> Vec<TaskAnswer> {
    let Task {
        number,
        kind,
        epoch,
        shard,
        ..
    } = task();
    let left_out = LeftOut {
        number,
        kind,
        epoch,
        shard,
        reason: "data/part-0.gz is gone".into(),
    };
    vec![
        TaskAnswer::Queue(Some(1)),
        TaskAnswer::Task(task()),
        TaskAnswer::Wait,
        TaskAnswer::Over(QueueStatus {
            counters: QueueCounters {
                tasks: 9,
                ..QueueCounters::default()
            },
            left_out: vec![left_out],
            is_over: true,
        }),
        TaskAnswer::Reported { counted: true },
    ]
}
