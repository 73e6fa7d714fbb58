//! Environments as launchers really make them (Open MPI 4.1.4, MPICH 4.0.2, Slurm 22.05, PRRTE 3). Those of
//! Flux, torchrun and DMLC, which were not at hand, follow the documentation.

use super::*;

use std::path::PathBuf;

/// Detection from variables, with descriptor 7 as the only open socket and a fixed directory.
fn look(vars: &str) -> Detection {
    with(vars, Explicit::default())
}

fn with(vars: &str, explicit: Explicit) -> Detection {
    let pair = |word: &str| {
        let (name, value) = word.split_once('=').unwrap();
        (name.into(), value.into())
    };
    let is_socket = |fd| fd == 7;
    let vars = vars.split_whitespace().map(pair);
    let around = LaunchEnv::new(vars, PathBuf::from("/j"), &is_socket, explicit);
    detect(&around)
}

fn place(vars: &str) -> Place {
    match look(vars).decision {
        Ok(Decision::Launched(place)) => place,
        other => panic!("{vars}: {other:?}"),
    }
}

const OMPI: &str = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2 \
                    OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_NODE_RANK=2 OMPI_UNIVERSE_SIZE=4 \
                    OMPI_MCA_orte_app_num=1 OMPI_FIRST_RANKS=0 PMIX_RANK=2 PMIX_NAMESPACE=205389825";
const HYDRA: &str = "PMI_FD=7 PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=4 \
                     HYDI_CONTROL_FD=8";
const SRUN: &str = "SLURM_JOB_ID=12 SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_NTASKS=8 \
                    SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_NODEID=1 \
                    SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_STEP_NODELIST=n[1-2]";
const PMI2: &str = "PMI_FD=7 PMI_RANK=3 PMI_SIZE=4 PMI_JOBID=12.0 SLURM_MPI_TYPE=pmi2";
const SBATCH: &str = "SLURM_JOB_ID=12 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0";
const FLUX: &str = "FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 FLUX_TASK_LOCAL_ID=0 FLUX_JOB_ID=f2xY";
const TORCH: &str = "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 \
                     MASTER_ADDR=node1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=a/b";
const DMLC: &str = "DMLC_ROLE=worker DMLC_WORKER_ID=1 DMLC_NUM_WORKER=2 DMLC_NUM_SERVER=3 \
                    DMLC_PS_ROOT_URI=10.0.0.1 DMLC_PS_ROOT_PORT=9000";

/// Expected result from a launcher's own variables: source, rank and size, those of the host, rendezvous.
type Row = (String, Source, [u32; 2], [Option<u32>; 2], String);

fn table() -> Vec<Row> {
    let pmi = || "PMI-1 over descriptor 7".to_owned();
    let dir = |name: &str| format!("directory /j/.tidewater/{name}");
    let row = |vars: &str, source, numbers, local: [i64; 2], meeting| {
        let local = local.map(|number| u32::try_from(number).ok());
        (vars.to_owned(), source, numbers, local, meeting)
    };
    let srun_pmi2 = format!("{SRUN} {PMI2}");
    let flux_pmi = format!("{FLUX} PMI_FD=7 PMI_RANK=1 PMI_SIZE=2");
    let torch = dir("torch-node1-29500-a_b-0");
    let by_hand = "TIDEWATER_RANK=0 TIDEWATER_SIZE=2 TIDEWATER_RENDEZVOUS=/nfs/x";
    let nfs = "directory /nfs/x".to_owned();
    vec![
        row(OMPI, Source::OpenMpi, [2, 4], [2, 4], dir("ompi-205389825")),
        row(HYDRA, Source::Hydra, [1, 4], [1, 4], pmi()),
        row(SRUN, Source::Slurm, [3, 4], [1, 2], dir("slurm-12.0")),
        row(&srun_pmi2, Source::Slurm, [3, 4], [1, 2], pmi()),
        row(FLUX, Source::Flux, [1, 2], [0, -1], dir("flux-f2xY")),
        row(&flux_pmi, Source::Flux, [1, 2], [0, -1], pmi()),
        row(TORCH, Source::Torchrun, [3, 4], [1, 2], torch),
        row(
            DMLC,
            Source::Dmlc,
            [4, 5],
            [-1, -1],
            dir("dmlc-10.0.0.1-9000"),
        ),
        row(by_hand, Source::Tidewater, [0, 2], [-1, -1], nfs),
    ]
}

#[test]
fn every_launcher_is_told_from_its_own_variables() {
    for (vars, source, numbers, local, meeting) in table() {
        let place = place(&vars);
        assert_eq!(
            (place.source, [place.rank, place.size]),
            (source, numbers),
            "{vars}"
        );
        assert_eq!([place.local_rank, place.local_size], local, "{vars}");
        assert_eq!(place.rendezvous.unwrap().to_string(), meeting, "{vars}");
    }
}

#[test]
fn the_closest_launcher_wins() {
    // mpirun in the script of sbatch, and in a shell of salloc: every process inherits SLURM_PROCID=0.
    for outer in [SBATCH, SRUN, FLUX, TORCH] {
        let place = place(&format!("{outer} {OMPI}"));
        assert_eq!(
            (place.source, place.rank, place.size),
            (Source::OpenMpi, 2, 4),
            "{outer}"
        );
    }
    // hydra starts its proxy by srun: all ranks have that step's PROCID 0 of 1.
    let step = "SLURM_JOB_ID=12 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1";
    let inside = place(&format!("{step} {HYDRA}"));
    assert_eq!(
        (inside.source, inside.rank, inside.size),
        (Source::Hydra, 1, 4)
    );
    // hydra inside mpirun, and mpirun inside hydra, with a descriptor that mpirun closed.
    assert_eq!(place(&format!("{OMPI} {HYDRA}")).source, Source::Hydra);
    let closed = HYDRA.replace("PMI_FD=7", "PMI_FD=6");
    let detection = look(&format!("{OMPI} {closed}"));
    let Ok(Decision::Launched(place)) = detection.decision else {
        panic!("not launched");
    };
    assert_eq!(place.source, Source::OpenMpi);
    let passed = &detection.findings[0];
    assert_eq!(passed.source, Source::Hydra);
    assert!(
        passed.verdict.text().contains("not an open socket"),
        "{passed:?}"
    );
}

#[test]
fn who_was_not_launched_is_alone_and_who_has_a_role_is_a_member() {
    for vars in [
        "HOME=/",
        SBATCH,
        "SLURM_JOB_ID=12",
        "PMI_FD=6 PMI_RANK=0 PMI_SIZE=2",
        "RANK=1",
    ] {
        assert_eq!(look(vars).decision.unwrap(), Decision::Alone, "{vars}");
    }
    let member = "TIDEWATER_COORDINATOR=h:1 TIDEWATER_RANK=0";
    assert_eq!(
        look(&format!("{OMPI} {member}")).decision.unwrap(),
        Decision::Member
    );
    assert_eq!(
        look("TIDEWATER_ROLE=server").decision.unwrap(),
        Decision::Member
    );
}

#[test]
fn a_size_without_a_meeting_place_is_an_error_that_says_what_to_set() {
    let nameless = OMPI.replace("PMIX_NAMESPACE", "UNKNOWN");
    for vars in [
        &nameless,
        "RANK=0 WORLD_SIZE=2",
        "TIDEWATER_RANK=1 TIDEWATER_SIZE=2",
    ] {
        let error = look(vars).decision.unwrap_err();
        assert!(
            matches!(error, DetectError::NoRendezvous { size, .. } if size > 1),
            "{error:?}"
        );
        assert!(
            error.to_string().contains("TIDEWATER_RENDEZVOUS"),
            "{error}"
        );
        assert!(
            place(&format!("{vars} TIDEWATER_RENDEZVOUS=meet"))
                .rendezvous
                .is_some()
        );
    }
    // A launch of one needs no rendezvous.
    let one = "TIDEWATER_RANK=0 TIDEWATER_SIZE=1";
    assert_eq!(place(one).rendezvous, None);
    for (vars, part) in [
        ("PMIX_RANK=0 PMIX_NAMESPACE=prterun-vm-7@1", "how many"),
        ("PMI_PORT=127.0.0.1:4 PMI_ID=0", "-pmi-port"),
        (
            "DMLC_ROLE=server DMLC_NUM_WORKER=1 DMLC_NUM_SERVER=1",
            "which of them",
        ),
    ] {
        let error = look(vars).decision.unwrap_err();
        assert!(error.to_string().contains(part), "{vars}: {error}");
    }
}

#[test]
fn nonsense_is_named() {
    for (vars, part) in [
        (OMPI.replace("RANK=2", "RANK=4"), "OMPI_COMM_WORLD_RANK"),
        (OMPI.replace("SIZE=4", "SIZE=0"), "OMPI_COMM_WORLD_SIZE"),
        (HYDRA.replace("PMI_SIZE=4", "PMI_SIZE=-1"), "PMI_SIZE"),
        (HYDRA.replace("PMI_FD=7", "PMI_FD=x"), "PMI_FD"),
        (
            SRUN.replace("PROCID=3", "PROCID=99999999999"),
            "SLURM_PROCID",
        ),
        (
            format!("{OMPI} TIDEWATER_RENDEZVOUS=pmi"),
            "TIDEWATER_RENDEZVOUS",
        ),
    ] {
        let error = look(&vars).decision.unwrap_err();
        assert!(error.to_string().contains(part), "{vars}: {error}");
    }
    // Values that are only used in messages are left out instead.
    assert!(place(&SRUN.replace("n[1-2]", "n[1-")).hosts.is_empty());
}

#[test]
fn flags_win_and_complete_what_is_missing() {
    let explicit = |rank, size, meeting: &str| Explicit {
        rank,
        size,
        rendezvous: (!meeting.is_empty()).then(|| meeting.to_owned()),
    };
    let decided = |vars: &str, explicit: Explicit| match with(vars, explicit).decision {
        Ok(Decision::Launched(place)) => place,
        other => panic!("{other:?}"),
    };
    let place = decided(OMPI, explicit(Some(0), Some(9), "/d"));
    assert_eq!(
        (place.source, place.rank, place.size),
        (Source::Flags, 0, 9)
    );
    let place = decided(
        "PMIX_RANK=1 PMIX_NAMESPACE=a@1",
        explicit(None, Some(2), ""),
    );
    assert_eq!(
        (place.source, place.rank, place.size),
        (Source::Prrte, 1, 2)
    );
    assert_eq!(place.job.as_deref(), Some("pmix-a_1"));
    let by_variable = "PMIX_RANK=1 PMIX_NAMESPACE=a@1 TIDEWATER_SIZE=2";
    assert_eq!(decided(by_variable, Explicit::default()), place);
    let place = decided(OMPI, explicit(None, None, "[fe80::1]:4000"));
    assert_eq!(
        place.rendezvous,
        Some(Rendezvous::Address("[fe80::1]:4000".into()))
    );
    for (rank, size, part) in [(5, 5, "below the 5"), (0, 0, "--size")] {
        let error = with("", explicit(Some(rank), Some(size), "/d"))
            .decision
            .unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_token_file_lets_slurm_s_hosts_be_dialled() {
    let place = place(&format!("{SRUN} TIDEWATER_TOKEN_FILE=/t"));
    let port = hostlist::port_of(12, "0");
    assert_eq!(
        place.rendezvous,
        Some(Rendezvous::Address(format!("n1:{port}")))
    );
    assert_eq!(place.hosts, ["n1", "n2"]);
    assert!(!place.is_one_host());
}
