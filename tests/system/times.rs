//! Start and shutdown time of a job. The times are printed. The test checks only that a job with no
//! work ends well within the limit of any wait.

use std::time::Duration;

use tidewater_runtime::clock;

use crate::rig::{Run, data};

#[test]
fn to_start_and_to_be_gone() {
    data();
    for transport in ["shm", "tcp"] {
        let options = ["--servers", "2", "--workers", "4", "--transport", transport];
        let spawned = clock::now();
        let mut run = Run::train(&options, &["--epochs", "1"]);
        run.until("epoch 1/1");
        let first_epoch = clock::now() - spawned;
        run.until("model:");
        let said = clock::now();
        let ended = run.end();
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        // The output gives the epoch's own time.
        let told = ended.stderr.split_once(" rows in ").unwrap().1;
        let told: f64 = told.split_once(" s").unwrap().0.parse().unwrap();
        let start = first_epoch.saturating_sub(Duration::from_secs_f64(told));
        let gone = clock::now() - said;
        println!(
            "2 servers and 4 workers over {transport}: {start:?} to start, {gone:?} to be gone"
        );
    }
}
