//! Transports that break one clause each, to show that its test detects it. They wrap the ends of a correct
//! transport. (F07, F12 and F13 cannot be broken from outside in safe code.)

use std::time::Duration;

use tidewater_lanes::fabric::*;
use tidewater_runtime::clock::Deadline;
use tidewater_runtime::sync::{Arc, AtomicBool, Ordering};

use crate::rig::{ClientTask, Rig, ServerTask};

/// Way in which a transport breaks the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is named after what it does")]
pub enum Defect {
    ReadChangesAByte,
    FenceIgnored,
    SignalOvertakesWrites,
    AtomicOvertakesWrites,
    SignalDoesNotWake,
    OldValueIsNew,
    AccessSaysBroken,
    GoesOnAfterBreak,
    DestroyDoesNothing,
    BatchesMixed,
    PostsSwapped,
    OneBreakBreaksAll,
    SleepReturnsAtOnce,
    AnnounceForgotten,
    WriteAllocates,
}

/// Each defect with the clause of the test that has to detect it.
pub const ALL: &[(Defect, &str)] = &[
    (Defect::ReadChangesAByte, "F01"),
    (Defect::ReadChangesAByte, "F02"),
    (Defect::FenceIgnored, "F03"),
    (Defect::SignalOvertakesWrites, "F04"),
    (Defect::AtomicOvertakesWrites, "F05"),
    (Defect::SignalDoesNotWake, "F06"),
    (Defect::OldValueIsNew, "F08"),
    (Defect::AccessSaysBroken, "F09"),
    (Defect::GoesOnAfterBreak, "F10"),
    (Defect::DestroyDoesNothing, "F11"),
    (Defect::BatchesMixed, "F14"),
    (Defect::PostsSwapped, "F15"),
    (Defect::OneBreakBreaksAll, "F16"),
    (Defect::SleepReturnsAtOnce, "F17"),
    (Defect::AnnounceForgotten, "F17"),
    (Defect::WriteAllocates, "F18"),
];

/// A correct rig with one defect.
pub(crate) struct Defective<'a> {
    pub(crate) rig: &'a dyn Rig,
    pub(crate) defect: Defect,
}

impl Rig for Defective<'_> {
    fn kind(&self) -> TransportKind {
        self.rig.kind()
    }

    fn label(&self) -> String {
        format!("{:?}", self.defect)
    }

    fn rounds(&self) -> u64 {
        self.rig.rounds()
    }

    fn in_order(&self) -> bool {
        self.rig.in_order()
    }

    fn allocations(&self) -> Option<fn() -> u64> {
        self.rig.allocations()
    }

    fn run(&self, server: ServerTask, clients: Vec<ClientTask>) {
        let defect = self.defect;
        let broke = Arc::new(AtomicBool::new(false));
        let server: ServerTask = Box::new(move |mut end| {
            for served in &mut end.lanes {
                let inner = std::mem::replace(&mut served.port, Box::new(Gone));
                let broke = Arc::clone(&broke);
                let held = None;
                served.port = Box::new(BadPort {
                    inner,
                    defect,
                    broke,
                    held,
                });
            }
            server(end);
        });
        let clients = clients.into_iter().map(|task| -> ClientTask {
            Box::new(move |mut end| {
                let inner = end.lane;
                let (held, dead) = (Vec::new(), false);
                end.lane = Box::new(BadLane {
                    inner,
                    defect,
                    held,
                    dead,
                });
                let inner = end.parker;
                end.parker = Box::new(BadParker { inner, defect });
                task(end);
            })
        });
        self.rig.run(server, clients.collect());
    }
}

struct BadLane {
    inner: Box<dyn ClientLane>,
    defect: Defect,
    /// Writes that later ones overtake.
    held: Vec<(RemoteAddr, Vec<u8>)>,
    dead: bool,
}

impl BadLane {
    fn release(&mut self) -> Result<(), LaneError> {
        for (to, bytes) in std::mem::take(&mut self.held) {
            self.inner.write(to, &bytes)?;
        }
        self.inner.flush()
    }

    fn change<T>(&mut self, done: Result<T, LaneError>) -> Result<T, LaneError> {
        let seen = std::mem::replace(&mut self.dead, done.is_err());
        match (self.defect, done) {
            (Defect::AccessSaysBroken, Err(LaneError::Access { peer, op, .. })) => {
                let (transport, why) = (self.inner.transport(), String::new());
                Err(LaneError::Broken {
                    transport,
                    peer,
                    op,
                    why,
                })
            }
            (_, done) => {
                self.dead |= seen;
                done
            }
        }
    }

    fn silence(&self, done: Result<(), LaneError>) -> Result<(), LaneError> {
        if self.defect == Defect::GoesOnAfterBreak && self.dead {
            return Ok(());
        }
        done
    }
}

impl ClientLane for BadLane {
    fn transport(&self) -> TransportKind {
        self.inner.transport()
    }

    fn peer(&self) -> &str {
        self.inner.peer()
    }

    fn read(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        deadline: Deadline,
    ) -> Result<(), LaneError> {
        let ReadDest { head, body } = into;
        let mut ops = ops.to_vec();
        if self.defect == Defect::FenceIgnored {
            ops.iter_mut().for_each(|op| op.fence = false);
        }
        let dest = ReadDest {
            head,
            body: &mut *body,
        };
        let done = self.inner.read(&ops, dest, deadline);
        if let (Defect::ReadChangesAByte, Some(last)) = (self.defect, body.last_mut()) {
            *last ^= 0x10;
        }
        self.change(done)
    }

    /// Each defect of a read applies here too.
    fn read_unpack(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        unpacker: &mut dyn Unpack,
        deadline: Deadline,
    ) -> Result<(), LaneError> {
        if matches!(self.defect, Defect::ReadChangesAByte | Defect::FenceIgnored) {
            unpacker.restart();
            return self.read(ops, into, deadline);
        }
        let done = self.inner.read_unpack(ops, into, unpacker, deadline);
        self.change(done)
    }

    fn submit_read(&mut self, batch: ReadBatch) -> Result<(), LaneError> {
        self.inner.submit_read(batch)
    }

    fn wait_read(
        &mut self,
        tag: u64,
        ops: &[ReadOp],
        body: &mut [u8],
        unpacker: Option<&mut dyn Unpack>,
        deadline: Deadline,
    ) -> Result<Option<ReadBatch>, LaneError> {
        let done = self.inner.wait_read(tag, ops, body, unpacker, deadline);
        let mut batch = self.change(done)?;
        if let Some(batch) = &mut batch {
            batch.tag ^= u64::from(self.defect == Defect::BatchesMixed);
        }
        Ok(batch)
    }

    fn poll_read(&mut self) -> Option<ReadBatch> {
        let mut batch = self.inner.poll_read()?;
        batch.tag ^= u64::from(self.defect == Defect::BatchesMixed);
        Some(batch)
    }

    fn write(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        match self.defect {
            Defect::SignalOvertakesWrites | Defect::AtomicOvertakesWrites => {
                self.held.push((to, bytes.to_vec()));
                Ok(())
            }
            Defect::WriteAllocates => {
                self.held = vec![(to, bytes.to_vec())];
                self.inner.write(to, bytes)
            }
            _ => {
                let done = self.inner.write(to, bytes);
                self.silence(done)
            }
        }
    }

    fn write_signal(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        if self.defect == Defect::SignalDoesNotWake {
            self.inner.write(to, bytes)?;
            return self.inner.flush();
        }
        self.inner.write_signal(to, bytes)?;
        if self.defect == Defect::WriteAllocates {
            return Ok(());
        }
        self.release()
    }

    fn write_signal_count(
        &mut self,
        to: RemoteAddr,
        bytes: &[u8],
        counter: RemoteAddr,
        add: u64,
    ) -> Result<(), LaneError> {
        signal_then_count(self, to, bytes, counter, add)
    }

    fn fetch_add(
        &mut self,
        at: RemoteAddr,
        add: u64,
        deadline: Deadline,
    ) -> Result<u64, LaneError> {
        let old = self.inner.fetch_add(at, add, deadline);
        self.release()?;
        let old = self.change(old)?;
        Ok(old + u64::from(self.defect == Defect::OldValueIsNew))
    }

    fn compare_swap(
        &mut self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
        deadline: Deadline,
    ) -> Result<u64, LaneError> {
        let old = self.inner.compare_swap(at, expect, new, deadline);
        self.change(old)
    }

    fn has_atomics(&self) -> bool {
        self.inner.has_atomics()
    }

    fn flush(&mut self) -> Result<(), LaneError> {
        let done = self.inner.flush();
        let done = self.change(done);
        self.silence(done)
    }

    fn flush_soon(&mut self) -> Result<(), LaneError> {
        let done = self.inner.flush_soon();
        let done = self.change(done);
        self.silence(done)
    }

    fn poll(&mut self) -> Result<bool, LaneError> {
        let moved = self.inner.poll();
        self.change(moved)
    }

    fn mailbox(&self) -> &Mailbox {
        self.inner.mailbox()
    }

    fn mapping(&self) -> Option<Mapping> {
        self.inner.mapping()
    }
}

struct BadPort {
    inner: Box<dyn ServerLane>,
    defect: Defect,
    /// Whether a server lane of this server broke.
    broke: Arc<AtomicBool>,
    held: Option<(usize, Vec<u8>)>,
}

impl ServerLane for BadPort {
    fn peer(&self) -> &str {
        self.inner.peer()
    }

    fn poll(&mut self, exports: &mut RegionTableView, inbox: &Inbox) -> Result<bool, LaneError> {
        if self.defect == Defect::OneBreakBreaksAll && self.broke.load(Ordering::Relaxed) {
            self.inner.destroy();
        }
        let moved = self.inner.poll(exports, inbox);
        self.broke.fetch_or(moved.is_err(), Ordering::Relaxed);
        moved
    }

    fn post(&mut self, at: usize, bytes: &[u8]) -> Result<(), LaneError> {
        if self.defect != Defect::PostsSwapped {
            return self.inner.post(at, bytes);
        }
        match self.held.take() {
            None => {
                self.held = Some((at, bytes.to_vec()));
                Ok(())
            }
            Some((first, held)) => {
                self.inner.post(at, bytes)?;
                self.inner.post(first, &held)
            }
        }
    }

    fn signal(&mut self) -> Result<(), LaneError> {
        self.inner.signal()
    }

    fn poll_hint(&self) -> Option<Duration> {
        self.inner.poll_hint()
    }

    fn destroy(&mut self) {
        if self.defect != Defect::DestroyDoesNothing {
            self.inner.destroy();
        }
    }
}

/// Placeholder for a server lane that was taken out.
struct Gone;

impl ServerLane for Gone {
    fn peer(&self) -> &str {
        ""
    }

    fn poll(&mut self, _: &mut RegionTableView, _: &Inbox) -> Result<bool, LaneError> {
        Ok(false)
    }

    fn post(&mut self, _: usize, _: &[u8]) -> Result<(), LaneError> {
        Ok(())
    }

    fn signal(&mut self) -> Result<(), LaneError> {
        Ok(())
    }

    fn poll_hint(&self) -> Option<Duration> {
        None
    }

    fn destroy(&mut self) {}
}

struct BadParker {
    inner: Box<dyn Parker>,
    defect: Defect,
}

impl Parker for BadParker {
    fn prepare_park(&mut self) {
        if self.defect != Defect::AnnounceForgotten {
            self.inner.prepare_park();
        }
    }

    fn park_until(&mut self, deadline: Deadline) {
        let deadline = match self.defect {
            Defect::SleepReturnsAtOnce => deadline.min(Deadline::after(Duration::from_micros(1))),
            _ => deadline,
        };
        self.inner.park_until(deadline);
    }

    fn cancel_park(&mut self) {
        self.inner.cancel_park();
    }
}
