//! The two ends of a simulated link.

use super::core::Core;
use super::link::{Action, LinkId, Post, Way};
use super::world::World;
use crate::clock::Deadline;
use crate::fabric::{
    ExportView, Inbox, Landing, Lane, LaneError, Mailbox, Port, ReadBatch, ReadOp, RemoteAddr,
    SIGNAL_BYTES_MAX, TransportKind,
};
use crate::ids::RegionKey;

/// The client's end.
#[derive(Debug)]
pub struct SimLane {
    world: World,
    id: LinkId,
    peer: String,
    mailbox: Mailbox,
    /// Set once an error was returned: final.
    dead: Option<LaneError>,
}

/// The server's end.
#[derive(Debug)]
pub struct SimPort {
    world: World,
    id: LinkId,
    peer: String,
}

impl SimLane {
    pub(super) const fn new(world: World, id: LinkId, peer: String, mailbox: Mailbox) -> Self {
        Self {
            world,
            id,
            peer,
            mailbox,
            dead: None,
        }
    }

    /// Names the link, for [`World::cut`].
    pub const fn link(&self) -> LinkId {
        self.id
    }

    /// A yield point before each call; refuses it when the lane is known to be broken.
    fn begin(&mut self, op: &'static str) -> Result<(), LaneError> {
        self.world.0.step();
        let mut core = self.world.0.lock();
        if self.dead.is_none() {
            core.tempt(self.id);
        }
        let known = known_error(&mut core, self.id);
        drop(core);
        self.check(op, known)
    }

    fn check(&mut self, op: &'static str, known: Option<LaneError>) -> Result<(), LaneError> {
        if let (None, Some(error)) = (&self.dead, known) {
            self.dead = Some(error);
        }
        match &self.dead {
            None => Ok(()),
            Some(error) => Err(named(error, op)),
        }
    }

    fn wait_for<T>(
        &mut self,
        op: &'static str,
        deadline: Deadline,
        mut done: impl FnMut(&mut Core) -> Option<T>,
    ) -> Result<T, LaneError> {
        let shared = &self.world.0;
        let mut core = shared.enter();
        let until = shared.nanos(deadline);
        loop {
            // The answer may be there although the link broke since.
            if let Some(value) = done(&mut core) {
                core.link(self.id).waiter = None;
                return Ok(value);
            }
            let known = known_error(&mut core, self.id);
            if known.is_some() || core.now >= until {
                core.link(self.id).waiter = None;
                let late = LaneError::Deadline {
                    transport: TransportKind::Sim,
                    peer: self.peer.clone(),
                    op,
                };
                drop(core);
                return match self.check(op, Some(known.unwrap_or(late))) {
                    Err(error) => Err(error),
                    Ok(()) => unreachable!("an error was just recorded"),
                };
            }
            core.link(self.id).waiter = shared.current();
            core = shared.wait(core, until);
        }
    }

    fn atomic(
        &mut self,
        op: &'static str,
        to: RemoteAddr,
        action: Action,
        deadline: Deadline,
    ) -> Result<u64, LaneError> {
        self.begin(op)?;
        let mut core = self.world.0.lock();
        core.link(self.id).answer = None;
        core.post(self.id, Way::ToServer, post(to, action), true);
        drop(core);
        let id = self.id;
        self.wait_for(op, deadline, |core| core.link(id).answer.take())
    }

    fn put(&mut self, to: RemoteAddr, bytes: &[u8], signal: bool) {
        let bytes = bytes.to_vec();
        let action = Action::Write { bytes, signal };
        let mut core = self.world.0.lock();
        core.post(self.id, Way::ToServer, post(to, action), signal);
        if signal {
            core.send_reads(self.id);
        }
    }
}

fn known_error(core: &mut Core, id: LinkId) -> Option<LaneError> {
    let link = core.link(id);
    link.error.clone().filter(|_| link.client_knows)
}

/// The same error, told by another operation.
fn named(error: &LaneError, now: &'static str) -> LaneError {
    let mut error = error.clone();
    if let LaneError::Broken { op, .. } = &mut error {
        *op = now;
    }
    error
}

const fn post(to: RemoteAddr, action: Action) -> Post {
    Post {
        to,
        action,
        words_left: None,
    }
}

fn check_ops(op: &'static str, ops: &[ReadOp], head: usize, body: usize) -> Result<(), LaneError> {
    let fits = ops.iter().all(|o| o.fits(head, body));
    if !fits {
        let what = "a landing that is too short";
        return Err(LaneError::Usage { op, what });
    }
    if !ops.iter().all(|o| o.head_len.is_multiple_of(8)) {
        let what = "a head that is not whole words";
        return Err(LaneError::Usage { op, what });
    }
    Ok(())
}

impl Lane for SimLane {
    fn transport(&self) -> TransportKind {
        TransportKind::Sim
    }

    fn peer(&self) -> &str {
        &self.peer
    }

    fn read(
        &mut self,
        ops: &[ReadOp],
        mut into: Landing<'_>,
        deadline: Deadline,
    ) -> Result<(), LaneError> {
        check_ops("read", ops, into.head.len(), into.body.len())?;
        self.begin("read")?;
        let mut core = self.world.0.lock();
        let id = self.id;
        let batch = core.queue_reads(id, ops, None);
        core.send_reads(id);
        drop(core);
        let taken = self.wait_for("read", deadline, |core| {
            let batches = &mut core.link(id).batches;
            let at = batches.iter().position(|b| b.id == batch)?;
            batches[at].is_whole().then(|| batches.swap_remove(at))
        });
        match taken {
            Ok(whole) => {
                whole.deliver(&mut into);
                Ok(())
            }
            Err(error) => {
                // What was asked for is unspecified now: nobody may lean on what was there.
                let noise = self.world.rng().bits() as u8;
                for op in ops {
                    let (head, body) = (op.head_len as usize, (op.len - op.head_len) as usize);
                    let head = &mut into.head[op.head_at..][..head];
                    head.iter_mut().step_by(3).for_each(|b| *b ^= noise);
                    let body = &mut into.body[op.body_at..][..body];
                    body.iter_mut().step_by(5).for_each(|b| *b ^= noise);
                }
                Err(error)
            }
        }
    }

    fn post_read(&mut self, batch: ReadBatch) -> Result<(), LaneError> {
        check_ops("post_read", &batch.ops, batch.head.len(), batch.body.len())?;
        let open = self.begin("post_read");
        let mut core = self.world.0.lock();
        let ops = batch.ops.clone();
        core.queue_reads(self.id, &ops, Some(batch));
        open
    }

    fn take_read(&mut self) -> Option<ReadBatch> {
        self.world.0.step();
        let mut core = self.world.0.lock();
        let finished = &mut core.link(self.id).finished;
        let count = finished.len() as u64;
        // They come back in any order.
        let nth = core.rng.below(count) as usize;
        core.link(self.id).finished.swap_remove_front(nth)
    }

    fn write(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        self.begin("write")?;
        self.put(to, bytes, false);
        Ok(())
    }

    fn write_signal(&mut self, to: RemoteAddr, bytes: &[u8]) -> Result<(), LaneError> {
        if bytes.len() > SIGNAL_BYTES_MAX {
            let (op, what) = ("write_signal", "more than SIGNAL_BYTES_MAX bytes");
            return Err(LaneError::Usage { op, what });
        }
        self.begin("write_signal")?;
        self.put(to, bytes, true);
        Ok(())
    }

    fn fetch_add(
        &mut self,
        at: RemoteAddr,
        add: u64,
        deadline: Deadline,
    ) -> Result<u64, LaneError> {
        self.atomic("fetch_add", at, Action::Add(add), deadline)
    }

    fn compare_swap(
        &mut self,
        at: RemoteAddr,
        expect: u64,
        new: u64,
        deadline: Deadline,
    ) -> Result<u64, LaneError> {
        let action = Action::CompareSwap(expect, new);
        self.atomic("compare_swap", at, action, deadline)
    }

    fn flush(&mut self) -> Result<(), LaneError> {
        self.begin("flush")?;
        let mut core = self.world.0.lock();
        core.hand_over(self.id, Way::ToServer);
        core.send_reads(self.id);
        Ok(())
    }

    fn poll(&mut self) -> Result<bool, LaneError> {
        self.begin("poll")?;
        let mut core = self.world.0.lock();
        core.send_reads(self.id);
        Ok(!core.link(self.id).finished.is_empty())
    }

    fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }
}

impl Drop for SimLane {
    fn drop(&mut self) {
        let mut core = self.world.0.lock();
        core.break_link(self.id, "the client closed it");
        let link = core.link(self.id);
        link.to_client.flying.clear();
        link.reads.clear();
    }
}

impl SimPort {
    pub(super) const fn new(world: World, id: LinkId, peer: String) -> Self {
        Self { world, id, peer }
    }

    /// Names the link, for [`World::cut`].
    pub const fn link(&self) -> LinkId {
        self.id
    }

    fn begin(&self, op: &'static str) -> Result<(), LaneError> {
        self.world.0.step();
        let mut core = self.world.0.lock();
        core.tempt(self.id);
        let link = core.link(self.id);
        match &link.error {
            Some(error) if link.owner_knows => {
                let mut error = named(error, op);
                if let LaneError::Broken { peer, .. } | LaneError::Access { peer, .. } = &mut error
                {
                    peer.clone_from(&link.client);
                }
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

impl Port for SimPort {
    fn peer(&self) -> &str {
        &self.peer
    }

    /// The simulated NIC needs no help and executes by itself, against a view of the same exports
    /// and inbox that the link was made with.
    fn poll(&mut self, _exports: &mut ExportView, _inbox: &Inbox) -> Result<bool, LaneError> {
        self.begin("poll")?;
        let mut core = self.world.0.lock();
        Ok(std::mem::take(&mut core.link(self.id).moved))
    }

    fn post(&mut self, at: usize, bytes: &[u8]) -> Result<(), LaneError> {
        self.begin("post")?;
        let mut core = self.world.0.lock();
        let size = core.link(self.id).mailbox.len();
        if !at.is_multiple_of(8) || at.checked_add(bytes.len()).is_none_or(|end| end > size) {
            let (op, what) = ("post", "a place that is not in the mailbox");
            return Err(LaneError::Usage { op, what });
        }
        let bytes = bytes.to_vec();
        let signal = false;
        let action = Action::Write { bytes, signal };
        core.post(self.id, Way::ToClient, post(mail(at), action), false);
        Ok(())
    }

    fn signal(&mut self) -> Result<(), LaneError> {
        self.begin("signal")?;
        let mut core = self.world.0.lock();
        core.post(self.id, Way::ToClient, post(mail(0), Action::Ring), true);
        Ok(())
    }

    fn destroy(&mut self) {
        self.world.0.step();
        self.world.0.lock().destroy(self.id);
    }
}

impl Drop for SimPort {
    fn drop(&mut self) {
        self.world.0.lock().destroy(self.id);
    }
}

const fn mail(at: usize) -> RemoteAddr {
    RemoteAddr {
        key: RegionKey(0),
        addr: at as u64,
    }
}
