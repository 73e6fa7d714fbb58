//! The two ends of a simulated link.

use super::core::Core;
use super::link::{Action, LinkId, Post, Way};
use super::read::Batch;
use super::world::World;
use crate::fabric::{
    ClientLane, Inbox, LaneError, Mailbox, Mapping, ReadBatch, ReadDest, ReadOp, RegionTableView,
    RemoteAddr, SIGNAL_BYTES_MAX, ServerLane, TransportKind, Unpack, signal_then_count,
};
use tidewater_protocol::ids::RegionKey;
use tidewater_runtime::clock::Deadline;

/// The client end of a simulated lane, made by [`World::connect`].
#[derive(Debug)]
pub struct SimClientLane {
    world: World,
    id: LinkId,
    peer: String,
    mailbox: Mailbox,
    /// Set once an error was returned: final.
    dead: Option<LaneError>,
}

/// The server end of a simulated lane, made by [`World::connect`].
#[derive(Debug)]
pub struct SimServerLane {
    world: World,
    id: LinkId,
    peer: String,
}

impl SimClientLane {
    pub(super) const fn new(world: World, id: LinkId, peer: String, mailbox: Mailbox) -> Self {
        Self {
            world,
            id,
            peer,
            mailbox,
            dead: None,
        }
    }

    /// Returns the id of the lane's link, for [`World::cut`].
    pub const fn link(&self) -> LinkId {
        self.id
    }

    /// Starts the call `op`: a yield point, at which another task may run and the adversary may break the
    /// link. Fails when the client has learnt that the link is broken, or an earlier call has broken the lane.
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

    /// Blocks the task until `done`, called after each event, returns a value, and returns it. Fails when
    /// the client has learnt that the link is broken. If the deadline passes first, the lane breaks with
    /// [`LaneError::Deadline`].
    fn wait_for<T>(
        &mut self,
        op: &'static str,
        deadline: Deadline,
        done: impl FnMut(&mut Core) -> Option<T>,
    ) -> Result<T, LaneError> {
        if let Some(value) = self.wait_until(op, deadline, done)? {
            return Ok(value);
        }
        let late = LaneError::Deadline {
            transport: TransportKind::Sim,
            peer: self.peer.clone(),
            op,
        };
        self.dead = Some(late.clone());
        Err(late)
    }

    /// Blocks the task until `done`, called after each event, returns a value; returns `None` at the
    /// deadline. Fails when the client has learnt that the link is broken.
    fn wait_until<T>(
        &mut self,
        op: &'static str,
        deadline: Deadline,
        mut done: impl FnMut(&mut Core) -> Option<T>,
    ) -> Result<Option<T>, LaneError> {
        let shared = &self.world.0;
        let mut core = shared.enter();
        let until = shared.nanos(deadline);
        loop {
            // The answer may be there although the link broke since.
            if let Some(value) = done(&mut core) {
                core.link(self.id).waiter = None;
                return Ok(Some(value));
            }
            let known = known_error(&mut core, self.id);
            if known.is_some() || core.now >= until {
                core.link(self.id).waiter = None;
                drop(core);
                return self.check(op, known).map(|()| None);
            }
            core.link(self.id).waiter = shared.current();
            core = shared.wait(core, until);
        }
    }

    fn read_as(
        &mut self,
        ops: &[ReadOp],
        mut into: ReadDest<'_>,
        mut unpacker: Option<&mut dyn Unpack>,
        deadline: Deadline,
    ) -> Result<(), LaneError> {
        check_ops("read", ops, into.head.len(), into.body.len())?;
        self.begin("read")?;
        let mut core = self.world.0.lock();
        let id = self.id;
        let batch = core.queue_reads(id, ops, None);
        core.send_reads(id);
        drop(core);
        let body = &mut *into.body;
        let read = self.wait_for("read", deadline, |core| {
            let Core { links, rng, .. } = core;
            let batches = &mut links[id.0].batches;
            let at = batches.iter().position(|b| b.id == batch)?;
            if let Some(unpacker) = &mut unpacker {
                batches[at].offer(rng, &mut **unpacker, body);
            }
            batches[at].is_complete().then(|| batches.swap_remove(at))
        });
        match read {
            Ok(complete) => {
                complete.deliver(&mut into);
                Ok(())
            }
            Err(error) => {
                // The requested bytes are unspecified now: overwrite them, so that no code relies on old
                // values.
                self.spoil(ops, into.head, 0);
                self.spoil(ops, into.body, 1);
                Err(error)
            }
        }
    }

    /// Ends a direct receive ([`ClientLane::wait_read`]): places bodies in the caller's `body`, heads in
    /// the batch, and returns the batch. Changes some bytes of the batch's own body at random, as it is
    /// unspecified. `None` for the reads of a blocking call.
    fn finish_direct(&self, complete: Batch, ops: &[ReadOp], body: &mut [u8]) -> Option<ReadBatch> {
        let mut complete = complete;
        let mut owned = complete.take_owned()?;
        let head = &mut owned.head[..];
        complete.deliver_as(ops, &mut ReadDest { head, body });
        self.spoil(&owned.ops, &mut owned.body, 1);
        Some(owned)
    }

    /// Changes some destination bytes of `ops` at random, so that no code relies on unspecified bytes.
    /// `part` is 0 if `dest` is the head buffer, 1 if it is the body buffer.
    fn spoil(&self, ops: &[ReadOp], dest: &mut [u8], part: usize) {
        let noise = self.world.rng().bits() as u8;
        for op in ops {
            let (head, body) = (op.head_len as usize, (op.len - op.head_len) as usize);
            let (at, len) = [(op.head_at, head), (op.body_at, body)][part];
            let bytes = dest[at..][..len].iter_mut();
            bytes.step_by(3 + 2 * part).for_each(|b| *b ^= noise);
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

/// Returns a copy of `error`, in which `LaneError::Broken` names the operation `now`.
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
        due: 0,
        words_left: None,
    }
}

fn check_ops(op: &'static str, ops: &[ReadOp], head: usize, body: usize) -> Result<(), LaneError> {
    let fits = ops.iter().all(|o| o.fits(head, body));
    if !fits {
        let what = "a destination that is too short";
        return Err(LaneError::Usage { op, what });
    }
    if !ops.iter().all(|o| o.head_len.is_multiple_of(8)) {
        let what = "a head that is not whole words";
        return Err(LaneError::Usage { op, what });
    }
    Ok(())
}

fn same_reads(posted: &[ReadOp], ops: &[ReadOp]) -> Result<(), LaneError> {
    let shape = |o: &ReadOp| (o.len, o.head_len, o.head_at);
    if posted.iter().map(shape).eq(ops.iter().map(shape)) {
        return Ok(());
    }
    let (op, what) = ("wait_read", "other reads than were posted");
    Err(LaneError::Usage { op, what })
}

impl ClientLane for SimClientLane {
    /// Returns `Sim`. If the faults set a distance with reads in order, it returns `Tcp`, so that the
    /// client reads as it does over TCP.
    fn transport(&self) -> TransportKind {
        match self.world.0.lock().faults.distance {
            Some(distance) if distance.reads_in_order => TransportKind::Tcp,
            _ => TransportKind::Sim,
        }
    }

    fn peer(&self) -> &str {
        &self.peer
    }

    fn read(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        deadline: Deadline,
    ) -> Result<(), LaneError> {
        self.read_as(ops, into, None, deadline)
    }

    fn read_unpack(
        &mut self,
        ops: &[ReadOp],
        into: ReadDest<'_>,
        unpacker: &mut dyn Unpack,
        deadline: Deadline,
    ) -> Result<(), LaneError> {
        unpacker.restart();
        self.read_as(ops, into, Some(unpacker), deadline)
    }

    fn submit_read(&mut self, batch: ReadBatch) -> Result<(), LaneError> {
        check_ops(
            "submit_read",
            &batch.ops,
            batch.head.len(),
            batch.body.len(),
        )?;
        let open = self.begin("submit_read");
        let mut core = self.world.0.lock();
        let ops = batch.ops.clone();
        core.queue_reads(self.id, &ops, Some(batch));
        open
    }

    fn poll_read(&mut self) -> Option<ReadBatch> {
        self.world.0.step();
        let mut core = self.world.0.lock();
        let finished = &mut core.link(self.id).finished;
        let count = finished.len() as u64;
        // Batches come back in any order.
        let nth = core.rng.below(count) as usize;
        core.link(self.id).finished.swap_remove_front(nth)
    }

    /// Receives the oldest batch directly into `body`. Declines one time in four with `None`, as the
    /// contract lets a lane do, to exercise that path of callers.
    fn wait_read(
        &mut self,
        tag: u64,
        ops: &[ReadOp],
        body: &mut [u8],
        mut unpacker: Option<&mut dyn Unpack>,
        deadline: Deadline,
    ) -> Result<Option<ReadBatch>, LaneError> {
        self.begin("wait_read")?;
        let id = self.id;
        let mut core = self.world.0.lock();
        let declines = core.rng.below(4) == 0;
        let posted = core.link(id).batches.iter_mut();
        let mut owned = posted.filter(|batch| batch.owned().is_some());
        let Some(oldest) = owned.next().filter(|_| !declines) else {
            return Ok(None);
        };
        let batch = oldest.id;
        match oldest.owned() {
            Some(owned) if owned.tag == tag => {
                same_reads(&owned.ops, ops)?;
                check_ops("wait_read", ops, owned.head.len(), body.len())?;
            }
            _ => return Ok(None),
        }
        oldest.is_direct = true;
        oldest.move_taken(ops, body, false);
        core.send_reads(id);
        drop(core);
        let dest = &mut *body;
        let waited = self.wait_until("wait_read", deadline, |core| {
            let Core { links, rng, .. } = core;
            let batches = &mut links[id.0].batches;
            let at = batches.iter().position(|b| b.id == batch)?;
            if let Some(unpacker) = &mut unpacker {
                batches[at].offer(rng, &mut **unpacker, dest);
            }
            batches[at].is_complete().then(|| batches.remove(at))
        });
        match waited {
            Ok(Some(complete)) => Ok(self.finish_direct(complete, ops, body)),
            late => {
                let mut core = self.world.0.lock();
                let left = core.link(id).batches.iter_mut().find(|b| b.id == batch);
                if let Some(left) = left {
                    left.move_taken(ops, body, true);
                    left.is_direct = false;
                }
                core.finish_batches(id);
                drop(core);
                self.spoil(ops, body, 1);
                late.map(|_| None)
            }
        }
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

    fn has_atomics(&self) -> bool {
        true
    }

    fn flush(&mut self) -> Result<(), LaneError> {
        self.begin("flush")?;
        let mut core = self.world.0.lock();
        core.hand_over(self.id, Way::ToServer);
        core.send_reads(self.id);
        Ok(())
    }

    /// Flushes with probability one half if the faults allow held posts, else always. Posts that are not
    /// flushed stay at this end until a flush or signal; submitted reads leave at a poll or wait too.
    fn flush_soon(&mut self) -> Result<(), LaneError> {
        self.begin("flush_soon")?;
        let mut core = self.world.0.lock();
        if !core.faults.hold || core.rng.below(2) == 0 {
            core.hand_over(self.id, Way::ToServer);
            core.send_reads(self.id);
        }
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

    /// Returns `None`: the simulator maps no server memory, as reads go over the simulated network.
    fn mapping(&self) -> Option<Mapping> {
        None
    }
}

impl Drop for SimClientLane {
    fn drop(&mut self) {
        let mut core = self.world.0.lock();
        core.break_link(self.id, "the client closed it");
        let link = core.link(self.id);
        link.to_client.flying.clear();
        link.reads.clear();
    }
}

impl SimServerLane {
    pub(super) const fn new(world: World, id: LinkId, peer: String) -> Self {
        Self { world, id, peer }
    }

    /// Returns the id of the lane's link, for [`World::cut`].
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

impl ServerLane for SimServerLane {
    fn peer(&self) -> &str {
        &self.peer
    }

    /// Executes nothing: the simulated NIC executes requests by itself, against the table and inbox that
    /// the link was made with. Returns whether the NIC completed a post of the client (write or atomic)
    /// since the last poll.
    fn poll(&mut self, _exports: &mut RegionTableView, _inbox: &Inbox) -> Result<bool, LaneError> {
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
        core.post(self.id, Way::ToClient, post(mail(0), Action::Signal), true);
        Ok(())
    }

    /// Returns `None`: the simulated NIC wakes the applier's parker by each signal of the client and at a
    /// break.
    fn poll_hint(&self) -> Option<std::time::Duration> {
        None
    }

    fn destroy(&mut self) {
        self.world.0.step();
        self.world.0.lock().destroy(self.id);
    }
}

impl Drop for SimServerLane {
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
