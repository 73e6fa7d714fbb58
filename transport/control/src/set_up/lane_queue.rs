//! The server's queue of requests for lanes.

use std::collections::VecDeque;
use std::time::Duration;

use tidewater_protocol::mutants::{self, Mutant};
use tidewater_runtime::clock::Deadline;

/// Time between two news to a client that waits; several fit the client's [`ATTEMPT`](super::ATTEMPT).
pub const NEWS_EVERY: Duration = Duration::from_secs(1);

/// What becomes of a request when its turn comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Its lanes are made.
    Now,
    /// It keeps its place: something that it needs is not ready.
    Later,
    /// Its client is gone or has recovered the lane: nothing is made.
    Void,
}

/// Number of a request that is being served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

/// The next step of a queue.
#[derive(Debug)]
pub enum Next<R, M> {
    /// Make the lanes, then call [`LaneQueue::done`].
    Make(Ticket, R, M),
    /// Nothing is to be made for this request.
    Void(R),
}

#[derive(Debug)]
struct Entry<R, M> {
    request: R,
    lanes: usize,
    make: M,
}

/// Requests for lanes, first come, first served, of which a limited number are served at once.
#[derive(Debug)]
pub struct LaneQueue<R, M> {
    waiting: VecDeque<Entry<R, M>>,
    /// The first so many waiting requests had [`Turn::Later`] and are not asked again until [`Self::recheck`].
    later: usize,
    running: Vec<(Ticket, R, usize)>,
    running_max: usize,
    tickets: u64,
    /// When the next news are due; `None` while nothing waits and nothing runs.
    news_at: Option<Deadline>,
}

impl<R: Clone, M> LaneQueue<R, M> {
    /// An empty queue that serves up to `running_max` requests at once.
    pub const fn new(running_max: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            later: 0,
            running: Vec::new(),
            running_max,
            tickets: 0,
            news_at: None,
        }
    }

    /// Requests that wait, and requests that are served.
    pub fn len(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// Adds a request for `lanes` lanes.
    pub fn push(&mut self, request: R, lanes: usize, make: M) {
        self.waiting.push_back(Entry {
            request,
            lanes,
            make,
        });
        self.news_at
            .get_or_insert_with(|| Deadline::after(NEWS_EVERY));
    }

    /// The next step; `None` when nothing can be done now. Void requests take no place among those that are served.
    /// A request with [`Turn::Later`] is passed over until [`Self::recheck`]. Cost: each request is asked
    /// for its turn once, and once more after each recheck.
    pub fn next(&mut self, mut turn: impl FnMut(&R) -> Turn) -> Option<Next<R, M>> {
        let has_room = self.running.len() < self.running_max;
        let is_void = loop {
            match turn(&self.waiting.get(self.later)?.request) {
                Turn::Later => self.later += 1,
                Turn::Void if !mutants::on(Mutant::VoidLanesMade) => break true,
                Turn::Void | Turn::Now if has_room => break false,
                Turn::Void | Turn::Now => return None,
            }
        };
        let Entry {
            request,
            lanes,
            make,
        } = self.waiting.remove(self.later)?;
        if is_void {
            return Some(Next::Void(request));
        }
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.running.push((ticket, request.clone(), lanes));
        Some(Next::Make(ticket, request, make))
    }

    /// Asks all requests for their turn again: something that they waited for is ready.
    pub const fn recheck(&mut self) {
        self.later = 0;
    }

    /// Notes that a request was served.
    pub fn done(&mut self, ticket: Ticket) {
        self.running.retain(|&(running, ..)| running != ticket);
        if self.running.is_empty() && self.waiting.is_empty() {
            self.news_at = None;
        }
    }

    /// When the next news are due, if any.
    pub const fn news_at(&self) -> Option<Deadline> {
        self.news_at
    }

    /// The news that are due: each unanswered request with the number of lanes before its own.
    pub fn news(&mut self) -> Vec<(R, u32)> {
        if !self.news_at.is_some_and(|at| at.passed()) {
            return Vec::new();
        }
        self.news_at = None;
        let running = self
            .running
            .iter()
            .map(|(_, request, _)| (request.clone(), 0));
        let mut news: Vec<_> = running.collect();
        let mut before: usize = self.running.iter().map(|&(.., lanes)| lanes).sum();
        for entry in &self.waiting {
            let count = u32::try_from(before).unwrap_or(u32::MAX);
            news.push((entry.request.clone(), count));
            before += entry.lanes;
        }
        if !news.is_empty() {
            self.news_at = Some(Deadline::after(NEWS_EVERY));
        }
        news
    }
}
