//! The text of definitions in manifests.

use std::fs;

use tidewater_protocol::ids::{DomainId, ServerId};
use tidewater_protocol::table::{
    Apply, DType, GradientOptions, Init, KeyOptions, Optimizer, Shape, TableSpec,
};

use super::{Cluster, CutDisk, Engine, specs};
use crate::manifest::read_manifest;

impl Cluster {
    /// The rule of each table, by name, as every applier has it.
    fn rules(&self) -> Vec<(String, Vec<Optimizer>)> {
        let rules_of = |id| {
            let appliers = self.servers.iter().flat_map(|server| {
                let mut engines = server.0.borrow_mut();
                let rule = |engine: &mut Engine| engine.table(id).unwrap().optimizer();
                engines.iter_mut().map(rule).collect::<Vec<_>>()
            });
            appliers.collect()
        };
        let tables = self.tables.iter();
        tables
            .map(|t| (t.spec.name.clone(), rules_of(t.id)))
            .collect()
    }

    fn set_rule(&self, name: &str, rule: Optimizer) {
        let table = self.tables.iter().find(|t| t.spec.name == name).unwrap();
        for server in &self.servers {
            for engine in server.0.borrow_mut().iter_mut() {
                engine.set_optimizer(table.id, rule);
            }
        }
    }
}

/// Hyper-parameters that were set go on in a loaded model, on every applier. The definition stays,
/// and only the tables with a change have a word of it in the manifest.
#[test]
fn settings_go_on_after_a_load() {
    let cluster = Cluster::new(&[1, 2]);
    let faster = Optimizer::AmsGrad {
        lr: 0.5,
        beta1: 0.8,
        beta2: 0.99,
        eps: 1e-6,
    };
    let shrunk = Optimizer::RowAdaGrad {
        lr: 1e-3,
        eps: 1e-8,
    };
    cluster.set_rule("three", faster);
    cluster.set_rule("one a row", shrunk);
    let dir = tempfile::tempdir().unwrap();
    cluster.save(&CutDisk::default(), dir.path(), 1).unwrap();
    let manifest = read_manifest(dir.path()).unwrap();
    let changed = manifest.tables.iter().filter(|t| t.optimizer.is_some());
    assert_eq!(changed.count(), 2);
    let loaded = Cluster::new(&[2, 1, 1]);
    loaded.load(dir.path()).unwrap();
    for (name, rules) in loaded.rules() {
        let spec = specs().into_iter().find(|s| s.name == name).unwrap();
        let want = match name.as_str() {
            "three" => faster,
            "one a row" => shrunk,
            _ => spec.optimizer,
        };
        assert_eq!(rules, [want; 4], "{name}");
    }
    // A number out of range is no model.
    let path = dir.path().join("manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"lr\": 0.5"), "{text}");
    fs::write(&path, text.replace("\"lr\": 0.5", "\"lr\": 0.0")).unwrap();
    read_manifest(dir.path()).unwrap_err();
}

/// The text of a table without options is that of a version without options: manifests keep their
/// words, and old ones can be read.
#[test]
fn text_omits_options_not_set() {
    let plain = TableSpec {
        name: "w".into(),
        shape: Shape::Sparse { dim: 8 },
        dtype: DType::F32,
        optimizer: Optimizer::AdaGrad { lr: 0.1, eps: 1e-8 },
        init: Init::Zeros,
        seed: 1,
        effect: Apply::Immediate,
        finite_check: true,
        domain: DomainId(0),
        partitions: 4,
        gradient: GradientOptions::default(),
        redo: false,
        keys: KeyOptions::default(),
        versions: 2,
        durability: Default::default(),
        partition_servers: None,
        partition_starts: None,
    };
    let text = serde_json::to_string(&plain).unwrap();
    let old = r#"{"name":"w","shape":{"Sparse":{"dim":8}},"dtype":"F32","optimizer":{"AdaGrad":{"lr":0.1,"eps":1e-8}},"init":"Zeros","seed":1,"effect":"Immediate","finite_check":true,"domain":0,"partitions":4}"#;
    assert_eq!(text, old);
    assert_eq!(serde_json::from_str::<TableSpec>(old).unwrap(), plain);
    let set = TableSpec {
        gradient: GradientOptions {
            clip_value: Some(1.5),
            ..GradientOptions::default()
        },
        ..plain.clone()
    };
    let text = serde_json::to_string(&set).unwrap();
    assert_eq!(serde_json::from_str::<TableSpec>(&text).unwrap(), set);
    let listed = TableSpec {
        partition_servers: Some([2, 0, 0, 1].map(ServerId).to_vec()),
        ..plain.clone()
    };
    let text = serde_json::to_string(&listed).unwrap();
    let with = "4,\"partition_servers\":[2,0,0,1]}";
    assert_eq!(text, old.replace("4}", with));
    assert_eq!(serde_json::from_str::<TableSpec>(&text).unwrap(), listed);
    let cut = TableSpec {
        partition_starts: Some(vec![0, 5, 6, 7].into()),
        ..plain.clone()
    };
    let text = serde_json::to_string(&cut).unwrap();
    let with_starts = "4,\"partition_starts\":[0,5,6,7]}";
    assert_eq!(text, old.replace("4}", with_starts));
    assert_eq!(serde_json::from_str::<TableSpec>(&text).unwrap(), cut);
    let recorded = TableSpec {
        redo: true,
        ..plain
    };
    let text = serde_json::to_string(&recorded).unwrap();
    assert_eq!(text, old.replace("4}", "4,\"redo\":true}"));
    assert_eq!(serde_json::from_str::<TableSpec>(&text).unwrap(), recorded);
}
