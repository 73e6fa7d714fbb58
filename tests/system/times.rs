//! How long a job takes to start and to be gone. Printed, for whoever waits for it; what is held is
//! that a job whose work is done in no time ends well within the time that one waits for anything.

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
        // What the epoch itself took, it says.
        let told = ended.stderr.split_once(" rows in ").unwrap().1;
        let told: f64 = told.split_once(" s").unwrap().0.parse().unwrap();
        let start = first_epoch.saturating_sub(Duration::from_secs_f64(told));
        let gone = clock::now() - said;
        println!(
            "2 servers and 4 workers over {transport}: {start:?} to start, {gone:?} to be gone"
        );
    }
}
