//! Programs that join a job by [`JoinOptions`]: language bindings, broadcast bootstrap records, and
//! processes that serve or work. The threads of the test are the processes of the program.

use std::ffi::OsString;
use std::time::Duration;

use tidewater::connect::{Bootstrap, BootstrapHost, Part};
use tidewater::{ClientError, Job, JoinOptions, Joined, SyncMode};

use crate::launched::{BY_HAND, FLUX, Started};
use crate::rig::turn;

/// Parses variables from lines `NAME=value`.
fn variables(text: &str) -> Vec<(OsString, OsString)> {
    let pairs = text
        .split_whitespace()
        .filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

/// Options of a language binding, with a timeout for tests.
fn binding() -> JoinOptions {
    JoinOptions {
        join_timeout: Some(Duration::from_secs(20)),
        worker_only: true,
        ..JoinOptions::default()
    }
}

/// Like an MPI library that does not know its launcher.
fn singleton() -> JoinOptions {
    JoinOptions {
        rank: Some(0),
        workers: Some(1),
        ..binding()
    }
}

/// The job that `options` and the variables of `text` name.
fn joined(options: JoinOptions, text: &str) -> Result<Job, ClientError> {
    let joined = options.join_from_vars(variables(text))?;
    Ok(joined.into_job().unwrap())
}

/// Rank and number of workers.
type Bound = Result<(u32, u32), ClientError>;

/// Runs four processes of Flux: a server that runs the coordinator, and three workers by
/// `JoinOptions`. Returns the workers' results, and the server's exit code and output.
fn bound(said: [JoinOptions; 3]) -> (Vec<Bound>, (i32, String)) {
    let mut started = Started::new();
    let meet = started.folder.path().join("meet");
    let vars = format!("{FLUX} TIDEWATER_RENDEZVOUS={}", meet.display());
    started.server(0, &vars, &["--join-timeout", "20s"]);
    let workers = said
        .into_iter()
        .zip(1..)
        .map(|(wanted, rank): (JoinOptions, u32)| {
            let vars = vars.replace('%', &rank.to_string());
            std::thread::spawn(move || {
                let job = joined(wanted, &vars)?;
                let mut client = job.client(SyncMode::Bsp)?;
                let numbers = (client.rank().0, client.workers());
                client.finish()?;
                drop(client);
                job.leave()?;
                Ok(numbers)
            })
        });
    let workers: Vec<_> = workers.collect();
    let results = workers.into_iter().map(|worker| worker.join().unwrap());
    (results.collect(), started.end().0.remove(0))
}

#[test]
fn a_binding_finds_the_job_of_its_launcher() {
    let agrees = JoinOptions {
        rank: Some(2),
        workers: Some(3),
        ..binding()
    };
    let (results, (code, said)) = bound([binding(), binding(), agrees]);
    assert_eq!(code, 0, "{said}");
    let numbers: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    assert_eq!(numbers, [(0, 3), (1, 3), (2, 3)]);

    let error = |text: &str| joined(binding(), text).unwrap_err();
    let first = "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 PMIX_NAMESPACE=1";
    let text = error(first).to_string();
    assert!(
        text.contains("servers come first: start it as in `mpirun"),
        "{text}"
    );
    let alone = error(&first.replace("SIZE=2", "SIZE=1"));
    let text = "Open MPI has started this process alone";
    assert!(alone.to_string().contains(text), "{alone}");
    assert!(matches!(alone, ClientError::NoJob(_)), "{alone:?}");
    let none = error("HOME=/");
    assert!(none.to_string().contains("names no job"), "{none}");
    assert!(matches!(none, ClientError::NoJob(_)), "{none:?}");
}

#[test]
fn a_binding_tells_of_a_launcher_that_counts_otherwise() {
    let (results, _) = bound([binding(), singleton(), binding()]);
    let said = results[1].as_ref().unwrap_err().to_string();
    let expected = "says that it is worker 0 of 1, and as rank 2 of 4 of Flux it is worker 1 of 3";
    assert!(
        said.contains(expected) && said.contains("own MPI"),
        "{said}"
    );
    // With a service, each would have been a job of one.
    let error = |options: JoinOptions, text: &str| joined(options, text).unwrap_err().to_string();
    let ompi = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMIX_NAMESPACE=1";
    let service = format!("{ompi} TIDEWATER_COORDINATOR=localhost:1 TIDEWATER_SERVERS=1");
    let said = error(singleton(), &service);
    assert!(
        said.contains("only worker, and Open MPI says that it is rank 1 of 2"),
        "{said}"
    );
    let named = JoinOptions {
        coordinator: Some("localhost:1".into()),
        ..singleton()
    };
    assert!(error(named, ompi).contains("only worker"));
    let own = JoinOptions {
        namespace: Some("mine".into()),
        ..singleton()
    };
    assert!(
        error(own, &service).contains("TIDEWATER_TOKEN_FILE"),
        "else it is let go on"
    );
}

/// Options of process `rank` of three that have a bootstrap record.
fn bootstrapped(record: &[u8], rank: u32, host: Option<BootstrapHost>) -> JoinOptions {
    let part = match rank {
        0 => Part::Server,
        _ => Part::Worker,
    };
    let record = record.to_owned();
    let size = 3;
    JoinOptions {
        bootstrap: Some(Bootstrap {
            record,
            rank,
            size,
            part,
            host,
        }),
        interface: Some("lo".into()),
        ..JoinOptions::default()
    }
}

#[test]
fn program_broadcasts_bootstrap_record_itself() {
    let host = BootstrapHost::start(3, Some("lo")).unwrap();
    let record = host.record();
    assert!(record.len() <= BootstrapHost::RECORD_BYTES_MAX);
    let record = &record;
    std::thread::scope(|scope| {
        let server = scope.spawn(move || bootstrapped(record, 0, Some(host)).join());
        for rank in [1, 2] {
            scope.spawn(move || {
                let joined = bootstrapped(record, rank, None).join().unwrap();
                let job = joined.into_job().unwrap();
                let of = format!("rank {rank} of 3");
                assert!(job.describe().contains(&of), "{}", job.describe());
                assert_eq!((job.rank(), job.workers()), (Some(rank - 1), Some(2)));
                let other = job.client_of(2 - rank, SyncMode::Bsp).unwrap_err();
                assert!(other.to_string().contains("cannot connect as worker"));
                let mut client = job.client(SyncMode::Bsp).unwrap();
                assert_eq!(client.rank().0, rank - 1);
                client.finish().unwrap();
                drop(client);
                job.leave().unwrap();
            });
        }
        assert!(matches!(server.join().unwrap(), Ok(Joined::Served)));
    });
    let error = bootstrapped(&record[..20], 1, None).join().unwrap_err();
    assert!(error.to_string().contains("no bootstrap record"), "{error}");
}

/// Begins a job of processes that count themselves, here threads: process `rank` of `size` with `servers`.
/// Rank 0 hands its bytes to the others by channels, as a broadcast would.
fn begun<T: Send>(
    (size, servers): (u32, u32),
    work: impl Fn(u32, Result<Job, ClientError>) -> T + Sync,
) -> Vec<T> {
    let channels = (1..size).map(|_| std::sync::mpsc::channel::<Vec<u8>>());
    let (senders, receivers): (Vec<_>, Vec<_>) = channels.unzip();
    let options = || JoinOptions {
        interface: Some("lo".into()),
        ..JoinOptions::default()
    };
    let work = &work;
    std::thread::scope(|scope| {
        let others = (1..size).zip(receivers).map(|(rank, receiver)| {
            scope.spawn(move || {
                let receive = |bytes: &mut [u8]| {
                    bytes.copy_from_slice(&receiver.recv().unwrap());
                    Ok(())
                };
                work(rank, options().begin(rank, size, servers, receive))
            })
        });
        let others: Vec<_> = others.collect();
        let send = |bytes: &mut [u8]| {
            senders
                .iter()
                .for_each(|other| other.send(bytes.to_vec()).unwrap());
            Ok(())
        };
        let first = work(0, options().begin(0, size, servers, send));
        let others = others.into_iter().map(|other| other.join().unwrap());
        std::iter::once(first).chain(others).collect()
    })
}

/// A program brings its servers in all of its processes, or in some. All work, by the ranks that they gave.
#[test]
fn program_brings_its_servers_in_some_ranks() {
    for (servers, expected) in [(0, 3), (2, 2)] {
        let found = begun((3, servers), |rank, job| {
            let job = job.unwrap();
            let mut client = job.client(SyncMode::Bsp).unwrap();
            assert_eq!((client.rank().0, client.workers()), (rank, 3));
            let servers = client.servers();
            client.tick().unwrap();
            client.finish().unwrap();
            drop(client);
            job.leave().unwrap();
            servers
        });
        assert_eq!(found, [expected; 3]);
    }
}

/// Rank 0 that cannot start still takes part in the broadcast, and the others fail at once.
#[test]
fn failed_begin_of_rank_0_reaches_all() {
    let errors = begun((2, 3), |_, job| job.unwrap_err().to_string());
    assert!(errors[0].contains("3 servers in 2 processes"), "{errors:?}");
    assert!(errors[1].contains("rank 0 could not start"), "{errors:?}");
    let fails = |_: &mut [u8]| Err(ClientError::Launch("MPI_Bcast has failed".into()));
    let error = JoinOptions::default().begin(1, 2, 0, fails).unwrap_err();
    assert!(error.to_string().contains("MPI_Bcast"), "{error}");
}

#[test]
fn options_that_contradict_are_refused() {
    let two = JoinOptions {
        coordinator: Some("localhost:1".into()),
        ..JoinOptions::embedded(1, 1)
    };
    let error = two.join().unwrap_err().to_string();
    assert!(error.contains("embedded and coordinator"), "{error}");
    let forbidden = JoinOptions {
        worker_only: true,
        ..bootstrapped(b"", 0, None)
    };
    let error = forbidden.join().unwrap_err().to_string();
    assert!(error.contains("worker_only forbids it"), "{error}");
    let tokenless = JoinOptions {
        coordinator: Some("localhost:1".into()),
        ..JoinOptions::default()
    };
    let error = tokenless.join().unwrap_err().to_string();
    assert!(error.contains("token_file"), "{error}");
}

/// Runs three processes of a program, here threads, that a launcher started; `vary` completes their
/// options. Returns the lines that describe the workers, and how many processes served.
fn by_hand(vary: impl Fn(u32, JoinOptions) -> JoinOptions + Sync) -> (Vec<String>, usize) {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let meet = folder.path().join("meet");
    let vars = BY_HAND.replace("=meet", &format!("={}", meet.display()));
    let process = |rank: u32| {
        let options = vary(rank, JoinOptions::default());
        let joined = options.join_from_vars(variables(&vars.replace('%', &rank.to_string())))?;
        let Joined::Worker(job) = joined else {
            return Ok(None);
        };
        let mut client = job.client(SyncMode::Bsp)?;
        client.tick()?;
        client.finish()?;
        let line = job.describe();
        // The client lives: only `finish` is needed before.
        job.leave()?;
        Ok::<_, ClientError>(Some(line))
    };
    let ended: Vec<_> = std::thread::scope(|scope| {
        let process = &process;
        let ranks: Vec<_> = (0..3)
            .map(|rank| scope.spawn(move || process(rank)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let lines: Vec<_> = ended.into_iter().map(Result::unwrap).collect();
    let served = lines.iter().filter(|line| line.is_none()).count();
    (lines.into_iter().flatten().collect(), served)
}

#[test]
fn launched_program_serves_and_works() {
    let (lines, served) = by_hand(|_, options| JoinOptions {
        servers: Some(1),
        ..options
    });
    assert_eq!((lines.len(), served), (2, 1));
    assert!(lines[1].contains("is worker 1 of 2"), "{lines:?}");
    let (lines, served) = by_hand(|_, options| JoinOptions {
        servers_in_ranks: true,
        appliers: Some(1),
        ..options
    });
    assert_eq!((lines.len(), served), (3, 0));
    assert!(
        lines[2].contains("is server and worker 2 of 3"),
        "{lines:?}"
    );
}
