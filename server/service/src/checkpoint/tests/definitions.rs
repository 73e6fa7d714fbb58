//! The text of definitions in manifests.

use tidewater_protocol::ids::DomainId;
use tidewater_protocol::table::{Apply, DType, GradientOptions, Init, Optimizer, Shape, TableSpec};

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
}
