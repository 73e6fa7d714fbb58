//! The end that connects: it runs the checks, judges them, and sends the result to the other end.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use tidewater_protocol::wire::handshake::JobToken;
use tidewater_runtime::clock;

use crate::clients::{self, Serving};
use crate::conn::{Answer, Ask, ClauseResult, Conn, Registered, ServerFacts, VERSION};
use crate::device::Device;
use crate::error::CheckError;
use crate::finding::{BothCounters, Finding, Verdict};
use crate::judge::{self, Compared};
use crate::perftest::{self, Program};
use crate::report::Report;
use crate::{Host, Options, counters, ledger};

/// Time limit for a connection to the listener.
const CONNECT: Duration = Duration::from_secs(5);
/// Time limit for answers that need little work.
const SOON: Duration = Duration::from_secs(60);
/// Time limit for the contract and for a registration at the other end.
const LONG: Duration = Duration::from_secs(900);
/// Time that a network interface is down.
const PORT_DOWN: Duration = Duration::from_secs(2);

/// Durations of one kind of check.
struct Plan {
    speed: Duration,
    torn: Duration,
    ledger: Duration,
    /// Rounds of each clause of the contract.
    rounds: u64,
    /// Whether both ends test the contract.
    both: bool,
    /// Bytes that each end registers, if both have four times as much.
    register: u64,
}

impl Plan {
    const fn of(short: bool) -> Self {
        match short {
            true => Self {
                speed: Duration::from_secs(2),
                torn: Duration::from_secs(5),
                ledger: Duration::from_secs(8),
                rounds: 20,
                both: false,
                register: 256 << 20,
            },
            false => Self {
                speed: Duration::from_secs(20),
                torn: Duration::from_secs(120),
                ledger: Duration::from_secs(180),
                rounds: 300,
                both: true,
                register: 8 << 30,
            },
        }
    }
}

/// Connects to a listener, runs all checks, and returns the result, which the listener gets too. `say` gets
/// lines of progress.
///
/// # Errors
/// [`CheckError`]: there was no check, or the other end was lost in the middle of it.
pub fn call(
    address: SocketAddr,
    host: Host,
    options: &Options,
    say: &mut dyn FnMut(&str),
) -> Result<Report, CheckError> {
    let stream = TcpStream::connect_timeout(&address, CONNECT);
    let stream = stream.map_err(|source| CheckError::Connect { address, source })?;
    let mut conn = Conn::new(stream, address)?;
    let (facts, device) = host.facts(conn.local()?.ip(), options.device.as_ref());
    let begin = Ask::Begin {
        version: VERSION,
        facts: Box::new(facts.clone()),
    };
    let listener = match conn.ask(&begin, SOON)? {
        Answer::Facts(listener) => *listener,
        Answer::Failed(why) => return Err(conn.wrong(why)),
        other => return Err(conn.wrong(format!("{other:?} as the first answer"))),
    };
    let report = Report {
        format: 1,
        short: options.short,
        began_unix_ms: clock::unix_ms(),
        findings: judge::hosts(&listener, &facts),
        listener,
        caller: facts,
        counters: [BothCounters::default(), BothCounters::default()],
    };
    let mut caller = Caller {
        conn,
        report,
        plan: Plan::of(options.short),
        options,
        say,
    };
    if let (Some(device), true) = (&device, caller.report.passed()) {
        caller.run(device)?;
    }
    let Caller {
        mut conn, report, ..
    } = caller;
    conn.ask(&Ask::Finish(Box::new(report.clone())), SOON)?;
    Ok(report)
}

struct Caller<'a> {
    conn: Conn,
    report: Report,
    plan: Plan,
    options: &'a Options,
    say: &'a mut dyn FnMut(&str),
}

/// Result of a check: a finding, or a failure in words. The outer error ends all checks.
type Step = Result<Result<Finding, String>, CheckError>;

impl Caller<'_> {
    /// Runs the checks that need both devices.
    fn run(&mut self, device: &Device) -> Result<(), CheckError> {
        if !self.step("path", |caller| caller.path(device))? {
            return Ok(());
        }
        self.step("order of data", |caller| caller.order(device))?;
        let before = self.counters()?;
        self.report.counters[0] = before.clone();
        let Some(serving) = self.serve()? else {
            return Ok(());
        };
        self.speed(&serving)?;
        let torn = self.plan.torn;
        self.step("torn reads", |_| {
            Ok(clients::torn(&serving, torn).map_err(|e| e.to_string()))
        })?;
        self.step("attach", |caller| caller.attach(&serving))?;
        let after = self.counters()?;
        self.report.findings.push(counters::judge(&before, &after));
        let time = self.plan.ledger;
        let seed = clock::unix_ms();
        self.step("ledger with broken queue pairs", |_| {
            Ok(ledger::ledger(&serving, time, seed).map_err(|e| e.to_string()))
        })?;
        self.step("link down and up", |caller| caller.link_down(&serving))?;
        self.step("late frames", Self::late_frames)?;
        self.step("lane contract", |caller| caller.contract(device))?;
        self.step("registration", |caller| caller.register(device))?;
        self.report.counters[1] = self.counters()?;
        Ok(())
    }

    /// Runs one check, adds its finding, and returns whether it did not fail.
    fn step(
        &mut self,
        check: &str,
        run: impl FnOnce(&mut Self) -> Step,
    ) -> Result<bool, CheckError> {
        (self.say)(check);
        let began = clock::now();
        let mut finding = match run(self)? {
            Ok(finding) => finding,
            Err(why) => failed(check, why),
        };
        finding.seconds = clock::now().duration_since(began).as_secs_f64();
        let passed = finding.verdict < Verdict::Fail;
        self.report.findings.push(finding);
        Ok(passed)
    }

    /// Sends a request and returns the answer, or the reason why it was not fulfilled.
    fn ask(&mut self, ask: &Ask, limit: Duration) -> Result<Result<Answer, String>, CheckError> {
        Ok(match self.conn.ask(ask, limit)? {
            Answer::Failed(why) => Err(format!("{}: {why}", self.report.listener.host)),
            answer => Ok(answer),
        })
    }

    fn path(&mut self, device: &Device) -> Step {
        let (offer, connect) = match device.offer() {
            Ok(offered) => offered,
            Err(why) => return Ok(Err(why)),
        };
        let finding = match self.ask(&Ask::Lane(Box::new(connect)), SOON)? {
            Ok(Answer::Lane { connected, key }) => offer.probe(&connected, key),
            Ok(other) => return Err(self.conn.wrong(format!("{other:?} to a lane"))),
            Err(why) => failed("path", why),
        };
        // Its answer says nothing more.
        self.ask(&Ask::EndLane, SOON)?.ok();
        Ok(Ok(finding))
    }

    fn order(&mut self, device: &Device) -> Step {
        let word = |order: Option<bool>| match order {
            Some(true) => "promises to place data in order",
            Some(false) => "promises no order of data",
            None => "cannot be asked for its order of data (libibverbs before 1.14)",
        };
        Ok(device.order().map(|order| {
            let found = format!(
                "the caller's device {}; frames carry checksums where there is no promise",
                word(order)
            );
            Finding::new("order of data", Verdict::Pass, found)
                .figure("in_order", f64::from(u8::from(order == Some(true))))
        }))
    }

    fn counters(&mut self) -> Result<BothCounters, CheckError> {
        let listener = match self.ask(&Ask::Counters, SOON)? {
            Ok(Answer::Counters(counters)) => counters,
            Ok(other) => return Err(self.conn.wrong(format!("{other:?} to counters"))),
            Err(_) => std::collections::BTreeMap::new(), // its device has none: the finding says so
        };
        let caller = match &self.report.caller.device {
            Some(device) => counters::read(&device.name, device.port),
            None => std::collections::BTreeMap::new(),
        };
        Ok(BothCounters { listener, caller })
    }

    /// Starts the listener's server; `None` after a finding that it does not start.
    fn serve(&mut self) -> Result<Option<Serving>, CheckError> {
        let why = match self.ask(&Ask::Serve, SOON)? {
            Ok(Answer::Serving { coordinator, token }) => match JobToken::from_hex(&token) {
                Some(token) => {
                    let device = self.options.device.clone();
                    return Ok(Some(Serving {
                        coordinator,
                        token,
                        device,
                    }));
                }
                None => return Err(self.conn.wrong("a token of another size")),
            },
            Ok(other) => return Err(self.conn.wrong(format!("{other:?} to a server"))),
            Err(why) => why,
        };
        self.report.findings.push(failed("server", why));
        Ok(None)
    }

    fn speed(&mut self, serving: &Serving) -> Result<(), CheckError> {
        (self.say)("speed");
        let began = clock::now();
        let speed = match clients::speed(serving, self.plan.speed) {
            Ok(speed) => speed,
            Err(e) => {
                self.report.findings.push(failed("speed", e.to_string()));
                return Ok(());
            }
        };
        let seconds = clock::now().duration_since(began).as_secs_f64();
        let figures = [
            (
                "pull of 8 bytes",
                "us",
                speed.pull_us,
                Program::ReadLatency,
                1.5,
                false,
            ),
            (
                "pull of 1 MiB",
                "MB_s",
                speed.range_gb_s * 1e3,
                Program::ReadBandwidth,
                0.85,
                true,
            ),
            (
                "pushes applied",
                "MB_s",
                speed.push_gb_s * 1e3,
                Program::WriteBandwidth,
                0.85,
                true,
            ),
        ];
        for (check, unit, ours, program, limit, more_is_better) in figures {
            (self.say)(check);
            let scale = if more_is_better { 1e3 } else { 1.0 };
            let reference = self.reference(program)?.map(|figure| figure * scale);
            let reference = reference.as_ref().map_err(String::as_str).copied();
            let compared = Compared {
                check,
                unit,
                ours,
                reference,
                limit,
                more_is_better,
            };
            let mut finding = judge::speed(compared);
            finding.seconds = seconds / 3.0;
            if speed.wrong > 0 {
                finding.verdict = Verdict::Fail;
                finding =
                    finding.change(format!("{} wrong values were read: report it", speed.wrong));
            }
            self.report.findings.push(finding);
        }
        Ok(())
    }

    /// The figure of a perftest program between both ends, or why there is none.
    fn reference(&mut self, program: Program) -> Result<Result<f64, String>, CheckError> {
        let name = program.name();
        for end in [&self.report.listener, &self.report.caller] {
            if !end.perftest.iter().any(|installed| installed == name) {
                return Ok(Err(format!(
                    "perftest ({name}) is not installed on {}",
                    end.host
                )));
            }
        }
        let Some(device) = self.report.caller.device.clone() else {
            return Ok(Err("no device".to_owned()));
        };
        let address = self.conn.peer().ip();
        let mut lost = None;
        let start = || match self.ask(&Ask::Perftest { program }, SOON) {
            Ok(Ok(Answer::Port(port))) => Ok(port),
            Ok(Ok(other)) => Err(format!("{other:?} to a program of perftest")),
            Ok(Err(why)) => Err(why),
            Err(error) => {
                lost = Some(error);
                Err("the other end is lost".to_owned())
            }
        };
        let measured = perftest::measure(program, &device, address, start);
        match lost {
            Some(error) => Err(error),
            None => Ok(measured),
        }
    }

    fn attach(&mut self, serving: &Serving) -> Step {
        let clients = self.options.clients;
        let pairs = |caller: &mut Self| {
            let server = caller.server()?;
            Ok::<_, CheckError>(server.pairs)
        };
        let before = pairs(self)?;
        let attached = clients::attach(serving, clients, || pairs(self));
        let (took, during) = match attached {
            Ok(attached) => attached,
            Err(e) => return Ok(Err(e.to_string())),
        };
        let took = took.as_secs_f64();
        let (found, made) = match (before, during?) {
            (Some(before), Some(during)) => {
                let made = during.saturating_sub(before);
                (
                    format!("{clients} clients in {took:.2} s, {made} queue pairs at the listener"),
                    made,
                )
            }
            _ => (
                format!(
                    "{clients} clients in {took:.2} s; queue pairs not counted: install iproute2"
                ),
                0,
            ),
        };
        let finding = Finding::new("attach", Verdict::Pass, found)
            .figure("clients", f64::from(clients))
            .figure("attach_s", took)
            .figure("queue_pairs", made as f64);
        Ok(Ok(finding))
    }

    fn server(&mut self) -> Result<ServerFacts, CheckError> {
        match self.ask(&Ask::Server, SOON)? {
            Ok(Answer::Server(facts)) => Ok(facts),
            Ok(other) => Err(self
                .conn
                .wrong(format!("{other:?} to the state of the server"))),
            Err(why) => Err(self.conn.wrong(why)),
        }
    }

    /// Sets the caller's network interface down and up during a ledger.
    fn link_down(&mut self, serving: &Serving) -> Step {
        const CHECK: &str = "link down and up";
        let Some(netdev) = self.options.port_down.clone() else {
            let found =
                "not asked for: --port-down NETDEV; queue pairs were broken on purpose instead";
            return Ok(Ok(Finding::new(CHECK, Verdict::Skipped, found)));
        };
        let time = self.plan.ledger.max(PORT_DOWN * 4);
        let (run, down) = std::thread::scope(|scope| {
            let fault = scope.spawn(|| {
                std::thread::sleep(PORT_DOWN);
                let down = set_link(&netdev, "down");
                std::thread::sleep(PORT_DOWN);
                // Up again also if `down` failed halfway.
                set_link(&netdev, "up").and(down)
            });
            let run = ledger::ledger(serving, time, clock::unix_ms());
            let panicked = |_| Err("the thread that sets the link panicked".to_owned());
            (run, fault.join().unwrap_or_else(panicked))
        });
        if let Err(why) = down {
            return Ok(Ok(Finding::new(
                CHECK,
                Verdict::Skipped,
                format!("not permitted: {why}"),
            )));
        }
        Ok(run.map_err(|e| e.to_string()).map(|mut finding| {
            CHECK.clone_into(&mut finding.check);
            finding.found = format!("{netdev} down for {PORT_DOWN:?}: {}", finding.found);
            finding
        }))
    }

    fn late_frames(&mut self) -> Step {
        let ServerFacts {
            frames,
            late_frames,
            ..
        } = self.server()?;
        let found = format!(
            "{late_frames} of {frames} frames arrived after their tail; their checksums held them back"
        );
        let finding = Finding::new("late frames", Verdict::Pass, found)
            .figure("frames", frames as f64)
            .figure("late_frames", late_frames as f64);
        Ok(Ok(finding))
    }

    fn contract(&mut self, device: &Device) -> Step {
        let rounds = self.plan.rounds;
        let mut ends = vec![("caller", device.contract(rounds))];
        if self.plan.both {
            let there = match self.ask(&Ask::Contract { rounds }, LONG)? {
                Ok(Answer::Contract(results)) => Ok(results),
                Ok(other) => return Err(self.conn.wrong(format!("{other:?} to the contract"))),
                Err(why) => Err(why),
            };
            ends.push(("listener", there));
        }
        let (mut found, mut bad) = (Vec::new(), false);
        for (end, results) in ends {
            let results = match results {
                Ok(results) => results,
                Err(why) => return Ok(Err(format!("{end}: {why}"))),
            };
            bad |= results.iter().any(ClauseResult::failed);
            found.push(format!("{end}: {}", clauses(&results)));
        }
        let verdict = if bad { Verdict::Fail } else { Verdict::Pass };
        let finding = Finding::new("lane contract", verdict, found.join("; "));
        Ok(Ok(match bad {
            true => finding.change(
                "report it with this document; until then use --transport tcp. Look for newer firmware of the device",
            ),
            false => finding,
        }))
    }

    fn register(&mut self, device: &Device) -> Step {
        let Report {
            listener, caller, ..
        } = &self.report;
        let ends = [listener, caller].into_iter();
        let least = ends.filter_map(|end| end.available_bytes).min();
        let default = least.map_or(self.plan.register, |free| self.plan.register.min(free / 4));
        let bytes = self.options.register_bytes.unwrap_or(default);
        let here = crate::facts::check_available(bytes).and_then(|()| device.register(bytes));
        let there = match self.ask(&Ask::Register { bytes }, LONG)? {
            Ok(Answer::Registered(times)) => Ok(times),
            Ok(other) => return Err(self.conn.wrong(format!("{other:?} to a registration"))),
            Err(why) => Err(why),
        };
        let mut found = Vec::new();
        let mut figures = Vec::new();
        for (end, times) in [("caller", here), ("listener", there)] {
            let Registered {
                pages_s,
                register_s,
            } = match times {
                Ok(times) => times,
                Err(why) => return Ok(Err(format!("{end}: {why}"))),
            };
            found.push(format!(
                "{end}: pages {pages_s:.2} s, registration {register_s:.2} s"
            ));
            figures.extend([
                (format!("{end}_pages_s"), pages_s),
                (format!("{end}_register_s"), register_s),
            ]);
        }
        let gib = bytes as f64 / f64::from(1 << 30);
        let found = format!("{gib:.2} GiB: {}", found.join("; "));
        let mut finding = Finding::new("registration", Verdict::Pass, found).figure("gib", gib);
        for (name, value) in figures {
            finding = finding.figure(&name, value);
        }
        Ok(Ok(finding))
    }
}

impl ClauseResult {
    const fn failed(&self) -> bool {
        self.ran && self.why.is_some()
    }
}

/// Results of all clauses in words.
fn clauses(results: &[ClauseResult]) -> String {
    let failed = results.iter().filter(|r| r.failed());
    let failed = failed.map(|r| {
        format!(
            "{} broken: {}",
            r.clause,
            r.why.as_deref().unwrap_or("no message")
        )
    });
    let failed: Vec<String> = failed.collect();
    let kept = results.iter().filter(|r| r.ran && r.why.is_none()).count();
    let not_run = results.iter().filter(|r| !r.ran);
    let not_run: Vec<&str> = not_run.map(|r| r.clause.as_str()).collect();
    let mut text = format!("{kept} of {} clauses hold", results.len());
    if !not_run.is_empty() {
        text += &format!(
            ", not run: {} (they need a program that counts allocations)",
            not_run.join(" ")
        );
    }
    if !failed.is_empty() {
        text += &format!(", {}", failed.join(", "));
    }
    text
}

/// A failed check, with a remedy where its reason is known.
fn failed(check: &str, why: String) -> Finding {
    let locked = why.contains("lock") && why.contains("memory") || why.contains("memlock");
    let finding = Finding::new(check, Verdict::Fail, why);
    match locked {
        true => finding.change("ulimit -l unlimited; for all users: `* - memlock unlimited` in /etc/security/limits.conf"),
        false => finding.change("the reason names the remedy; else report it with this document"),
    }
}

/// Sets a network interface up or down.
fn set_link(netdev: &str, state: &str) -> Result<(), String> {
    let output = Command::new("ip")
        .args(["link", "set", "dev", netdev, state])
        .output();
    let output = output.map_err(|e| format!("cannot run ip: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}
