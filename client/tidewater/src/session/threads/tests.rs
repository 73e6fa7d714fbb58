use super::*;

/// A coordinator that awaits the successor of each server, with a notice of it that comes after `at`.
struct Awaiting {
    at: Deadline,
    resumes: u64,
}

impl Awaiting {
    fn perform(
        &self,
        call: &CoordinatorCall,
        _: Deadline,
    ) -> Result<CoordinatorReply, ClientError> {
        unreachable!("{} at {} resumes", call.op(), self.resumes)
    }
}

impl CoordinatorLink for Awaiting {
    blocking_calls!();

    fn check_within(&mut self, timeout: Duration) -> Result<(), ClientError> {
        let until = Deadline::after(timeout);
        while !until.passed() {
            if self.resumes == 0 && self.at.passed() {
                self.resumes = 1;
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn awaits_successor(&self, _: ServerId) -> bool {
        self.resumes == 0
    }

    fn resumed(&self, seen: u64) -> Option<(u64, Members)> {
        (self.resumes > seen).then(|| (self.resumes, Members::default()))
    }

    fn resumes(&self) -> u64 {
        self.resumes
    }

    fn finished(&mut self, _: Deadline) -> Result<(), ClientError> {
        Ok(())
    }

    fn failed(&mut self, _: &str, _: Deadline) -> Result<(), ClientError> {
        Ok(())
    }
}

/// Threads that wait for a notice of the coordinator leave its link to the others, and the notice that one of them
/// takes ends the waits of all.
#[test]
fn waits_for_notices_share_link() {
    let at = Deadline::after(Duration::from_millis(200));
    let link = Box::new(Awaiting { at, resumes: 0 });
    let worker = Arc::new(WorkerState::new(WorkerId(0), link));
    worker.open().extend([1, 2]);
    let shared = |thread| SharedCoordinator {
        worker: Arc::clone(&worker),
        thread: WorkerThread {
            rank: WorkerId(0),
            thread,
        },
    };
    let begun = clock::now();
    std::thread::scope(|scope| {
        for thread in [0, 1] {
            let mut link = shared(thread);
            scope.spawn(move || link.check_within(Duration::from_secs(30)).unwrap());
        }
        std::thread::sleep(Duration::from_millis(50));
        let link = shared(2);
        assert!(at.passed() || link.awaits_successor(ServerId(0)));
        assert!(at.passed() || link.resumed(0).is_none());
    });
    assert!(begun.elapsed() < Duration::from_secs(20), "a notice missed");
    assert_eq!(shared(2).resumed(0).map(|(number, _)| number), Some(1));
}
