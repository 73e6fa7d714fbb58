//! Prometheus' text format, version 0.0.4: a `HELP` and a `TYPE` line for each metric, then its samples.

use std::fmt::{Display, Write as _};

use super::{JobReport, QueueReport, Report, ServerReport, SessionReport};

/// Writer of metrics and their samples.
struct Page(String);

/// Name and value of each label of a sample.
type Labels<'a> = &'a [(&'static str, &'a dyn Display)];

impl Page {
    // Writes to a String do not fail.
    fn metric(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: Labels<'_>, value: u64) {
        self.0.push_str(name);
        for (number, (label, text)) in labels.iter().enumerate() {
            let before = if number == 0 { '{' } else { ',' };
            let text = escaped(&text.to_string());
            let _ = write!(self.0, "{before}{label}=\"{text}\"");
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{end} {value}");
    }
}

/// A label's value: backslash, quote and line feed are escaped.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// A metric of every server that has answered: its value and its remaining labels.
type OfServer = (&'static str, &'static str, fn(&ServerReport) -> u64);
/// A metric of every session.
type OfSession = (&'static str, &'static str, fn(&SessionReport) -> u64);
/// A metric of every job.
type OfJob = (&'static str, &'static str, fn(&JobReport) -> u64);

/// A metric of every queue of tasks: name, kind, help, value.
type OfQueue = (
    &'static str,
    &'static str,
    &'static str,
    fn(&QueueReport) -> u64,
);

const OF_SERVERS: [OfServer; 5] = [
    (
        "tidewater_public_bytes",
        "Bytes in use for parameters.",
        |s| s.public.used_bytes,
    ),
    (
        "tidewater_public_capacity_bytes",
        "Bytes reserved for parameters.",
        |s| s.public.capacity_bytes,
    ),
    (
        "tidewater_private_bytes",
        "Bytes in use for keys, indexes and optimizer state.",
        |s| s.private.used_bytes,
    ),
    (
        "tidewater_private_capacity_bytes",
        "Bytes reserved for keys, indexes and optimizer state.",
        |s| s.private.capacity_bytes,
    ),
    (
        "tidewater_connections",
        "Control connections of a server.",
        |s| s.connections,
    ),
];

const OF_SESSIONS: [OfSession; 4] = [
    (
        "tidewater_session_connected",
        "Whether the session has its control connection.",
        |s| s.connected.into(),
    ),
    (
        "tidewater_session_cuts_total",
        "Times that the control connection was cut.",
        |s| s.cuts,
    ),
    (
        "tidewater_session_recoveries_total",
        "Lanes that were recovered.",
        |s| s.recoveries,
    ),
    (
        "tidewater_session_refused_frames_total",
        "Frames that appliers have refused.",
        |s| s.refused_frames,
    ),
];

const OF_JOBS: [OfJob; 5] = [
    (
        "tidewater_job_workers_expected",
        "Workers of the job, 0 if unknown.",
        |j| j.workers_expected.into(),
    ),
    ("tidewater_job_tables", "Tables of the job.", |j| {
        j.tables.into()
    }),
    (
        "tidewater_job_at_barriers",
        "Workers that wait at barriers.",
        |j| j.at_barriers.into(),
    ),
    (
        "tidewater_job_saving",
        "Whether a save or load runs.",
        |j| u64::from(!j.saving.is_empty()),
    ),
    ("tidewater_job_failed", "Whether the job has failed.", |j| {
        u64::from(!j.failed.is_empty())
    }),
];

const OF_QUEUES: [OfQueue; 12] = [
    (
        "tidewater_queue_tasks",
        "gauge",
        "Tasks of one pass.",
        |q| q.tasks,
    ),
    (
        "tidewater_queue_epochs_total",
        "counter",
        "Passes that have begun.",
        |q| q.epochs.into(),
    ),
    (
        "tidewater_queue_open",
        "gauge",
        "Tasks that workers have now.",
        |q| q.open,
    ),
    (
        "tidewater_queue_given_total",
        "counter",
        "Deliveries of tasks to workers.",
        |q| q.given,
    ),
    (
        "tidewater_queue_finished_total",
        "counter",
        "Tasks that are finished.",
        |q| q.finished,
    ),
    (
        "tidewater_queue_records_total",
        "counter",
        "Records of the finished tasks.",
        |q| q.records,
    ),
    (
        "tidewater_queue_recovered_total",
        "counter",
        "Deliveries taken back from workers that were lost or have left.",
        |q| q.recovered,
    ),
    (
        "tidewater_queue_timeouts_total",
        "counter",
        "Deliveries taken back because their time was over.",
        |q| q.timeouts,
    ),
    (
        "tidewater_queue_stragglers_total",
        "counter",
        "Deliveries to a second worker.",
        |q| q.stragglers,
    ),
    (
        "tidewater_queue_failures_total",
        "counter",
        "Failures that workers reported.",
        |q| q.failures,
    ),
    (
        "tidewater_queue_late_total",
        "counter",
        "Reports of deliveries that counted no more.",
        |q| q.late,
    ),
    (
        "tidewater_queue_left_out",
        "gauge",
        "Tasks that are left out.",
        |q| q.left_out,
    ),
];

/// The page of a report.
pub(super) fn text(report: &Report) -> String {
    let mut page = Page(String::new());
    if !report.coordinator.is_empty() {
        page.metric("tidewater_up", "gauge", "Whether the cluster runs.");
        let labels: Labels<'_> = &[("version", &report.version)];
        page.sample("tidewater_up", labels, report.stopping.is_empty().into());
        let name = "tidewater_servers_expected";
        page.metric(name, "gauge", "Servers that the cluster waits for.");
        page.sample(name, &[], report.servers_expected.into());
        jobs(&mut page, report);
    }
    clocks(&mut page, report);
    servers(&mut page, report);
    page.0
}

fn jobs(page: &mut Page, report: &Report) {
    for (name, help, value) in OF_JOBS {
        page.metric(name, "gauge", help);
        for job in &report.jobs {
            page.sample(name, &[("namespace", &job.namespace)], value(job));
        }
    }
    let name = "tidewater_worker_state";
    page.metric(name, "gauge", "State of a worker: 1 with the label.");
    for job in &report.jobs {
        for worker in &job.workers {
            let labels: Labels<'_> = &[
                ("namespace", &job.namespace),
                ("rank", &worker.rank),
                ("state", &worker.state),
            ];
            page.sample(name, labels, 1);
        }
    }
    for (name, kind, help, value) in OF_QUEUES {
        page.metric(name, kind, help);
        for job in &report.jobs {
            for queue in &job.queues {
                let labels: Labels<'_> = &[("namespace", &job.namespace), ("queue", &queue.queue)];
                page.sample(name, labels, value(queue));
            }
        }
    }
}

fn clocks(page: &mut Page, report: &Report) {
    let name = "tidewater_worker_ticks_total";
    page.metric(
        name,
        "counter",
        "Ticks of a worker's thread that all servers have consumed.",
    );
    for (job, domain) in domains(report) {
        for clock in &domain.clocks {
            let labels: Labels<'_> = &[
                ("namespace", &job.namespace),
                ("domain", &domain.domain),
                ("rank", &clock.rank),
                ("thread", &clock.thread),
            ];
            page.sample(name, labels, clock.tick);
        }
    }
    let name = "tidewater_worker_awaited";
    page.metric(
        name,
        "gauge",
        "Ranks that hold the others of their job back.",
    );
    for (job, domain) in domains(report) {
        for rank in &domain.awaited {
            let labels: Labels<'_> = &[
                ("namespace", &job.namespace),
                ("domain", &domain.domain),
                ("rank", rank),
            ];
            page.sample(name, labels, 1);
        }
    }
}

fn domains(report: &Report) -> impl Iterator<Item = (&JobReport, &super::DomainReport)> {
    let jobs = report.jobs.iter();
    jobs.flat_map(|job| job.domains.iter().map(move |domain| (job, domain)))
}

fn servers(page: &mut Page, report: &Report) {
    let name = "tidewater_server_up";
    page.metric(name, "gauge", "Whether the server has answered.");
    for server in &report.servers {
        let labels: Labels<'_> = &[
            ("server", &server.server),
            ("host", &server.host),
            ("version", &server.version),
        ];
        page.sample(name, labels, server.error.is_none().into());
    }
    let answered = || report.servers.iter().filter(|s| s.error.is_none());
    for (name, help, value) in OF_SERVERS {
        page.metric(name, "gauge", help);
        for server in answered() {
            page.sample(name, &[("server", &server.server)], value(server));
        }
    }
    appliers(page, report);
    for (number, (name, help, value)) in OF_SESSIONS.into_iter().enumerate() {
        let kind = if number == 0 { "gauge" } else { "counter" };
        page.metric(name, kind, help);
        for server in answered() {
            for session in &server.sessions {
                let labels: Labels<'_> = &[
                    ("server", &server.server),
                    ("namespace", &session.namespace),
                    ("role", &session.role),
                    ("rank", &session.rank),
                    ("thread", &session.thread),
                    ("carrier", &session.carrier),
                ];
                page.sample(name, labels, value(session));
            }
        }
    }
}

fn appliers(page: &mut Page, report: &Report) {
    type OfApplier = (
        &'static str,
        &'static str,
        &'static str,
        fn(&super::ApplierReport) -> u64,
    );
    const ALL: [OfApplier; 5] = [
        (
            "tidewater_applier_up",
            "gauge",
            "Whether the applier has answered within two seconds.",
            |a| a.answered.into(),
        ),
        (
            "tidewater_applier_frames_total",
            "counter",
            "Frames that the applier has handled.",
            |a| a.frames,
        ),
        (
            "tidewater_applier_held_bytes",
            "gauge",
            "Bytes of pushes held back for the turn of their rank.",
            |a| a.held_bytes,
        ),
        (
            "tidewater_applier_saves",
            "gauge",
            "Saves under way.",
            |a| a.saves.into(),
        ),
        (
            "tidewater_applier_late_frames_total",
            "counter",
            "Frames that arrived after their tail, and were waited for.",
            |a| a.late_frames,
        ),
    ];
    for (name, kind, help, value) in ALL {
        page.metric(name, kind, help);
        for server in &report.servers {
            for applier in &server.appliers {
                let labels: Labels<'_> =
                    &[("server", &server.server), ("applier", &applier.applier)];
                page.sample(name, labels, value(applier));
            }
        }
    }
}
