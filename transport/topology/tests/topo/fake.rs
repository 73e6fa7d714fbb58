//! Synthetic machines: folders with `sys` and `proc` as the kernel would fill them. Tests of the server
//! include this file too.

#![allow(dead_code, reason = "each crate's tests use a part of it")]

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tidewater_topology::{Topology, format_list};

/// A fake machine in a folder.
pub(crate) struct Machine {
    folder: TempDir,
    nodes: u32,
}

impl Machine {
    /// An empty folder: neither `sys` nor `proc`.
    pub(crate) fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, nodes: 0 }
    }

    /// `nodes` nodes of `cores` cores with `smt` siblings each, one L3 cache a node, all allowed. Numbered
    /// as most are: first siblings of all cores, then second ones.
    pub(crate) fn of(nodes: u32, cores: u32, smt: u32) -> Self {
        Self::with_caches(nodes, cores, smt, cores)
    }

    /// As [`Self::of`], with an L3 cache for every `per_cache` cores.
    pub(crate) fn with_caches(nodes: u32, cores: u32, smt: u32, per_cache: u32) -> Self {
        let all = nodes * cores * smt;
        let mut machine = Self::empty();
        machine.nodes = nodes;
        let list = |keep: &dyn Fn(u32) -> bool| {
            format_list(&(0..all).filter(|&cpu| keep(cpu)).collect::<Vec<_>>())
        };
        let core_of = |cpu: u32| cpu % (nodes * cores);
        let node_of = |cpu: u32| core_of(cpu) / cores;
        let cache_of = |cpu: u32| core_of(cpu) / per_cache;
        let everybody = list(&|_| true);
        let everywhere = format_list(&(0..nodes).collect::<Vec<_>>());
        let cpu = "sys/devices/system/cpu";
        machine = machine
            .put(&format!("{cpu}/online"), &everybody)
            .put(&format!("{cpu}/possible"), &everybody)
            .put(&format!("{cpu}/present"), &everybody)
            .put("sys/devices/system/node/online", &everywhere)
            .put("sys/devices/system/node/possible", &everywhere);
        for id in 0..all {
            let (core, node, cache) = (core_of(id), node_of(id), cache_of(id));
            let siblings = list(&|other| core_of(other) == core);
            let sharing = list(&|other| cache_of(other) == cache);
            let at = format!("{cpu}/cpu{id}");
            machine = machine
                .put(&format!("{at}/topology/core_cpus_list"), &siblings)
                .put(
                    &format!("{at}/topology/physical_package_id"),
                    &node.to_string(),
                )
                .put(&format!("{at}/cache/index2/level"), "3")
                .put(&format!("{at}/cache/index2/shared_cpu_list"), &sharing);
        }
        for id in 0..nodes {
            let at = format!("sys/devices/system/node/node{id}");
            let distances = (0..nodes).map(|to| if to == id { "10" } else { "21" });
            let distances = distances.collect::<Vec<_>>().join(" ");
            let memory = format!(
                "Node {id} MemTotal:       67108864 kB\nNode {id} MemFree:        33554432 kB\n"
            );
            machine = machine
                .put(&format!("{at}/cpulist"), &list(&|cpu| node_of(cpu) == id))
                .put(&format!("{at}/distance"), &distances)
                .put(&format!("{at}/meminfo"), &memory);
        }
        machine.allowed(&everybody, &everywhere)
    }

    /// Adds a file, and the folders above it.
    pub(crate) fn put(self, path: &str, text: &str) -> Self {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{text}\n")).unwrap();
        self
    }

    /// Adds further files that the kernel has and hwloc reads.
    pub(crate) fn in_detail(mut self) -> Self {
        let cpu = "sys/devices/system/cpu";
        for id in parse(&self.read(&format!("{cpu}/online"))) {
            let at = format!("{cpu}/cpu{id}");
            let siblings = self.read(&format!("{at}/topology/core_cpus_list"));
            let sharing = self.read(&format!("{at}/cache/index2/shared_cpu_list"));
            let node = self.read(&format!("{at}/topology/physical_package_id"));
            let package = self.read(&format!("sys/devices/system/node/node{node}/cpulist"));
            let core = parse(&siblings)[0].to_string();
            for (file, cpus) in [
                ("topology/thread_siblings", &siblings),
                ("topology/core_cpus", &siblings),
                ("topology/core_siblings", &package),
                ("topology/package_cpus", &package),
                ("cache/index0/shared_cpu_map", &siblings),
                ("cache/index1/shared_cpu_map", &siblings),
                ("cache/index2/shared_cpu_map", &sharing),
            ] {
                self = self.put(&format!("{at}/{file}"), &mask(cpus));
            }
            let caches = ["1 Data 32K", "2 Unified 1024K", "3 Unified 32768K"];
            for (index, cache) in caches.iter().enumerate() {
                let mut words = cache.split(' ');
                for file in ["level", "type", "size"] {
                    let word = words.next().unwrap();
                    self = self.put(&format!("{at}/cache/index{index}/{file}"), word);
                }
            }
            self = self.put(&format!("{at}/topology/core_id"), &core);
        }
        for node in parse(&self.read("sys/devices/system/node/online")) {
            let at = format!("sys/devices/system/node/node{node}");
            let cpus = self.read(&format!("{at}/cpulist"));
            self = self.put(&format!("{at}/cpumap"), &mask(&cpus));
        }
        self
    }

    /// Removes a file or folder.
    pub(crate) fn without(self, path: &str) -> Self {
        let path = self.path(path);
        match path.is_dir() && !path.is_symlink() {
            true => std::fs::remove_dir_all(path).unwrap(),
            false => std::fs::remove_file(path).unwrap(),
        }
        self
    }

    /// Adds a link as sysfs has them, here with the full path.
    pub(crate) fn link(self, path: &str, target: &str) -> Self {
        let (path, target) = (self.path(path), self.path(target));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::create_dir_all(&target).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
        self
    }

    /// Sets the processors and nodes that this process may use.
    pub(crate) fn allowed(self, cpus: &str, nodes: &str) -> Self {
        let status = format!(
            "Name:\ttest\nCapEff:\t0000000000000000\nCpus_allowed_list:\t{cpus}\n\
             Mems_allowed_list:\t{nodes}\nvoluntary_ctxt_switches:\t0"
        );
        self.put("proc/self/status", &status)
    }

    /// Adds a NIC on a node (-1: firmware does not report it), with an address in a /24.
    pub(crate) fn nic(self, name: &str, node: i32, mtu: u32, address: [u8; 4]) -> Self {
        let bus = format!("sys/devices/pci0000:00/0000:{name}");
        let at = format!("sys/class/net/{name}");
        let cpus = match u32::try_from(node) {
            Ok(node) => self.read(&format!("sys/devices/system/node/node{node}/cpulist")),
            Err(_) => self.read("sys/devices/system/cpu/online"),
        };
        self.put(&format!("{bus}/numa_node"), &node.to_string())
            .put(&format!("{bus}/local_cpulist"), &cpus)
            .put(&format!("{at}/mtu"), &mtu.to_string())
            .put(&format!("{at}/operstate"), "up")
            .put(&format!("{at}/flags"), "0x1003")
            .put(&format!("{at}/speed"), "100000")
            .link(&format!("{at}/device"), &bus)
            .address(name, address)
    }

    /// Adds the loopback device, which is up.
    pub(crate) fn loopback(self) -> Self {
        self.put("sys/class/net/lo/mtu", "65536")
            .put("sys/class/net/lo/operstate", "unknown")
            .put("sys/class/net/lo/flags", "0x9")
    }

    /// Adds an address of a device, and the route to its /24.
    pub(crate) fn address(self, device: &str, address: [u8; 4]) -> Self {
        let [a, b, c, d] = address;
        let route = format!(
            "{device}\t00{c:02X}{b:02X}{a:02X}\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        );
        let trie = format!("     |-- {a}.{b}.{c}.{d}\n        /32 host LOCAL\n");
        let header = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n";
        self.append("proc/net/route", header, &route)
            .append("proc/net/fib_trie", "Main:\n", &trie)
    }

    fn append(self, path: &str, header: &str, text: &str) -> Self {
        let mut old = self.read(path);
        if old.is_empty() {
            old = header.to_owned();
        }
        self.put(path, &format!("{}\n{text}", old.trim_end()))
    }

    /// Adds an RDMA device above a NIC. It has one port, RoCE v1 and v2 GIDs of its link-local and of its
    /// IPv4 address, and the character device.
    pub(crate) fn roce(self, name: &str, net: &str, address: [u8; 4]) -> Self {
        let [a, b, c, d] = address;
        let ip = format!("0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}");
        let local = "fe80:0000:0000:0000:0a00:00ff:fe00:0001";
        let at = format!("sys/class/infiniband/{name}");
        let bus = self.path(&format!("sys/class/net/{net}/device"));
        let machine = match bus.canonicalize() {
            Ok(bus) => self.link(&format!("{at}/device"), bus.to_str().unwrap()),
            Err(_) => self,
        };
        let number = machine.uverbs_count();
        machine
            .put(&format!("{at}/node_guid"), "0a00:00ff:fe00:0001")
            .put(&format!("{at}/fw_ver"), "16.35.2000")
            .put(&format!("{at}/ports/1/state"), "4: ACTIVE")
            .put(&format!("{at}/ports/1/phys_state"), "5: LinkUp")
            .put(&format!("{at}/ports/1/link_layer"), "Ethernet")
            .put(&format!("{at}/ports/1/rate"), "100 Gb/sec (4X EDR)")
            .put(&format!("{at}/ports/1/lid"), "0x0")
            .gid(name, 0, local, "IB/RoCE v1", net)
            .gid(name, 1, local, "RoCE v2", net)
            .gid(name, 2, &ip, "IB/RoCE v1", net)
            .gid(name, 3, &ip, "RoCE v2", net)
            .put(
                &format!("{at}/ports/1/gids/4"),
                "0000:0000:0000:0000:0000:0000:0000:0000",
            )
            .put(
                &format!("sys/class/infiniband_verbs/uverbs{number}/ibdev"),
                name,
            )
            .put(&format!("dev/infiniband/uverbs{number}"), "")
    }

    /// Adds an InfiniBand device with one active port, on node 0: its GID is `prefix` and a GUID of the LID.
    pub(crate) fn infiniband(self, name: &str, prefix: &str, lid: u16, rate: &str) -> Self {
        let at = format!("sys/class/infiniband/{name}");
        let port = format!("{at}/ports/1");
        let number = self.uverbs_count();
        self.put(&format!("{at}/node_guid"), "0002:c903:0000:0001")
            .put(&format!("{at}/node_type"), "1: CA")
            .put(&format!("{port}/state"), "4: ACTIVE")
            .put(&format!("{port}/phys_state"), "5: LinkUp")
            .put(&format!("{port}/link_layer"), "InfiniBand")
            .put(&format!("{port}/rate"), rate)
            .put(&format!("{port}/lid"), &format!("{lid:#x}"))
            .put(&format!("{port}/sm_lid"), "0x1")
            .put(&format!("{port}/pkeys/0"), "0xffff")
            .put(
                &format!("{port}/gids/0"),
                &format!("{prefix}:0002:c903:0000:{lid:04x}"),
            )
            .put(
                &format!("sys/class/infiniband_verbs/uverbs{number}/ibdev"),
                name,
            )
            .put(&format!("dev/infiniband/uverbs{number}"), "")
    }

    /// Attaches an RDMA device to a node.
    pub(crate) fn on_node(self, name: &str, node: u32) -> Self {
        let bus = format!("sys/devices/pci0000:00/0000:{name}");
        let cpus = self.read(&format!("sys/devices/system/node/node{node}/cpulist"));
        self.put(&format!("{bus}/numa_node"), &node.to_string())
            .put(&format!("{bus}/local_cpulist"), &cpus)
            .link(&format!("sys/class/infiniband/{name}/device"), &bus)
    }

    /// Adds an IPoIB interface above a port, with an address in a /24.
    pub(crate) fn ipoib(self, net: &str, device: &str, port: u32, address: [u8; 4]) -> Self {
        let at = format!("sys/class/net/{net}");
        let bus = format!("sys/devices/pci0000:00/0000:{device}");
        self.put(&format!("{bus}/infiniband/{device}/node_type"), "1: CA")
            .put(&format!("{at}/type"), "32")
            .put(&format!("{at}/mtu"), "2044")
            .put(&format!("{at}/operstate"), "up")
            .put(&format!("{at}/dev_port"), &(port - 1).to_string())
            .link(&format!("{at}/device"), &bus)
            .address(net, address)
    }

    fn uverbs_count(&self) -> usize {
        let all = std::fs::read_dir(self.path("sys/class/infiniband_verbs"));
        all.map_or(0, Iterator::count)
    }

    /// Adds an entry of a GID table.
    pub(crate) fn gid(self, device: &str, index: u32, gid: &str, kind: &str, net: &str) -> Self {
        let at = format!("sys/class/infiniband/{device}/ports/1");
        self.put(&format!("{at}/gids/{index}"), gid)
            .put(&format!("{at}/gid_attrs/types/{index}"), kind)
            .put(&format!("{at}/gid_attrs/ndevs/{index}"), net)
    }

    /// Adds a pool of hugepages, all on node 0.
    pub(crate) fn hugepages(self, kib: u64, total: u64, free: u64) -> Self {
        let nodes = self.nodes;
        let pool = |machine: Self, at: String, total: u64, free: u64| {
            machine
                .put(&format!("{at}/nr_hugepages"), &total.to_string())
                .put(&format!("{at}/free_hugepages"), &free.to_string())
        };
        let name = format!("hugepages-{kib}kB");
        let mut machine = pool(self, format!("sys/kernel/mm/hugepages/{name}"), total, free).put(
            &format!("sys/kernel/mm/hugepages/{name}/resv_hugepages"),
            "0",
        );
        for node in 0..nodes {
            let at = format!("sys/devices/system/node/node{node}/hugepages/{name}");
            let share = if node == 0 { (total, free) } else { (0, 0) };
            machine = pool(machine, at, share.0, share.1);
        }
        machine
    }

    /// The folder of the machine.
    pub(crate) fn root(&self) -> &Path {
        self.folder.path()
    }

    /// The topology that the crate reads from it.
    pub(crate) fn read_topology(&self) -> Topology {
        Topology::read_at(self.root())
    }

    fn read(&self, path: &str) -> String {
        let text = std::fs::read_to_string(self.path(path)).unwrap_or_default();
        text.trim_end().to_owned()
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }
}

/// The numbers of a list like `0-2,8`.
fn parse(list: &str) -> Vec<usize> {
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    };
    list.split(',').flat_map(part).collect()
}

/// Formats a list as a kernel mask: groups of 32 bits in hexadecimal, the highest first.
fn mask(list: &str) -> String {
    let mut groups = [0_u32; 8];
    for cpu in parse(list) {
        groups[cpu / 32] |= 1 << (cpu % 32);
    }
    let used = groups.iter().rposition(|&g| g != 0).unwrap_or(0);
    let groups = groups[..=used].iter().rev();
    let groups = groups.map(|g| format!("{g:08x}"));
    groups.collect::<Vec<_>>().join(",")
}
