//! A tree of topic filters: one node per distinct prefix of levels, so that matching a topic visits matching prefixes only.
//!
//! Level names are kept once for the whole tree and numbered; an edge is then a pair of numbers in one hash map, and `+` and `#`
//! have a place in their parent. Matching hashes each level of the topic once, and a name that no filter uses ends every path
//! but the wildcards'. A node takes about 80 bytes with its edge.

use crate::limits::{FILTER_NAME_BYTES_MAX, FILTER_NODES_MAX, TOPIC_LEVELS_MAX};
use crate::mqtt::topic::levels;
use foldhash::fast::FixedState;
use slab::Slab;
use std::collections::HashMap;
use std::sync::Arc;

/// Number of a node. 0 is the root, which is nobody's child, so that 0 also says "no child".
pub type NodeId = u32;

const ROOT: NodeId = 0;
const NONE: NodeId = 0;
const PLUS: u32 = u32::MAX;
const HASH: u32 = u32::MAX - 1;

/// Why a filter cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeFull {
    /// It has more than [`TOPIC_LEVELS_MAX`] levels.
    Levels,
    /// The tree is at [`FILTER_NODES_MAX`] or [`FILTER_NAME_BYTES_MAX`].
    Space,
}

/// Filters with a value each.
#[derive(Debug)]
pub struct FilterTree<V> {
    nodes: Slab<Node<V>>,
    /// Parent and level name to child.
    edges: HashMap<(NodeId, u32), NodeId, FixedState>,
    names: Slab<Name>,
    numbers: HashMap<Arc<[u8]>, u32, FixedState>,
    name_bytes: usize,
}

#[derive(Debug)]
struct Node<V> {
    parent: NodeId,
    /// Number of the level's name, [`PLUS`] or [`HASH`].
    name: u32,
    plus: NodeId,
    hash: NodeId,
    children: u32,
    value: Option<V>,
}

impl<V> Node<V> {
    fn new(parent: NodeId, name: u32) -> Self {
        Self { parent, name, plus: NONE, hash: NONE, children: 0, value: None }
    }
}

#[derive(Debug)]
struct Name {
    text: Arc<[u8]>,
    /// Nodes that bear it.
    nodes: u32,
}

impl<V> FilterTree<V> {
    /// An empty tree. The seed keeps clients from choosing names that collide.
    pub fn new(hash_seed: u64) -> Self {
        let mut nodes = Slab::new();
        nodes.insert(Node::new(ROOT, HASH));
        let hasher = FixedState::with_seed(hash_seed);
        Self {
            nodes,
            edges: HashMap::with_hasher(hasher.clone()),
            names: Slab::new(),
            numbers: HashMap::with_hasher(hasher),
            name_bytes: 0,
        }
    }

    /// The value of a node, if it has one.
    pub fn value(&self, node: NodeId) -> Option<&V> {
        self.nodes.get(node as usize)?.value.as_ref()
    }

    /// The value of a node, to change it.
    pub fn value_mut(&mut self, node: NodeId) -> Option<&mut V> {
        self.nodes.get_mut(node as usize)?.value.as_mut()
    }

    /// The node of exactly this filter, if it has a value.
    pub fn find(&self, filter: &[u8]) -> Option<NodeId> {
        let node = levels(filter).try_fold(ROOT, |node, level| self.child_for(node, level))?;
        self.value(node).map(|_| node)
    }

    /// The node of a filter, made if it was not there, and its value, which begins as the default.
    ///
    /// # Errors
    /// At a bound; the tree is as before.
    pub fn insert(&mut self, filter: &[u8]) -> Result<(NodeId, &mut V), TreeFull>
    where
        V: Default,
    {
        // A node holds at most as much new text as the filter has, and there are as many nodes as levels.
        let count = levels(filter).take(TOPIC_LEVELS_MAX + 1).count();
        if count > TOPIC_LEVELS_MAX {
            return Err(TreeFull::Levels);
        }
        if self.nodes.len() + count > FILTER_NODES_MAX || self.name_bytes + filter.len() > FILTER_NAME_BYTES_MAX {
            // It may still be there as a whole, which takes no space.
            let node =
                levels(filter).try_fold(ROOT, |node, level| self.child_for(node, level)).ok_or(TreeFull::Space)?;
            return self.value_or_default(node);
        }
        let mut node = ROOT;
        for level in levels(filter) {
            node = match self.child_for(node, level) {
                Some(child) => child,
                None => self.add_child(node, level),
            };
        }
        self.value_or_default(node)
    }

    /// Takes the value of a node away, and every node that only led to it.
    pub fn remove(&mut self, node: NodeId) -> Option<V> {
        let value = self.nodes.get_mut(node as usize)?.value.take();
        let mut at = node;
        while at != ROOT
            && let Some(gone) = self.nodes.get(at as usize)
            && gone.value.is_none()
            && gone.children == 0
        {
            let (parent, name) = (gone.parent, gone.name);
            self.nodes.try_remove(at as usize);
            self.cut(parent, name);
            at = parent;
        }
        value
    }

    /// The filter that leads to a node.
    pub fn filter(&self, node: NodeId) -> Vec<u8> {
        let mut path = Vec::new();
        let mut at = node;
        while at != ROOT
            && let Some(here) = self.nodes.get(at as usize)
        {
            path.push(self.text(here.name));
            at = here.parent;
        }
        path.reverse();
        path.join(&b'/')
    }

    /// Calls `found` with the value of every filter that matches the topic. `+` stands for one level, `#` for any number of them,
    /// none included; neither stands for a first level that begins with `$` [MQTT-4.7.1-2] [MQTT-4.7.1-3] [MQTT-4.7.2-1].
    pub fn visit<'t>(&'t self, topic: &[u8], mut found: impl FnMut(&'t V)) {
        // Nodes whose filters match the levels so far, and those that match one level more.
        let (mut here, mut next) = (vec![ROOT], Vec::new());
        let mut wildcards = !topic.starts_with(b"$");
        for level in levels(topic) {
            let number = self.numbers.get(level).copied();
            for id in here.drain(..) {
                let Some(node) = self.nodes.get(id as usize) else { continue };
                if wildcards {
                    self.value(node.hash).into_iter().for_each(&mut found);
                    next.extend(Some(node.plus).filter(|plus| *plus != NONE));
                }
                next.extend(number.and_then(|number| self.edges.get(&(id, number))));
            }
            core::mem::swap(&mut here, &mut next);
            if here.is_empty() {
                return;
            }
            wildcards = true;
        }
        for node in here.into_iter().filter_map(|id| self.nodes.get(id as usize)) {
            node.value.iter().for_each(&mut found);
            self.value(node.hash).into_iter().for_each(&mut found);
        }
    }

    /// Nodes and bytes of names that the tree holds.
    pub fn size(&self) -> (usize, usize) {
        (self.nodes.len(), self.name_bytes)
    }

    fn value_or_default(&mut self, node: NodeId) -> Result<(NodeId, &mut V), TreeFull>
    where
        V: Default,
    {
        let place = self.nodes.get_mut(node as usize).ok_or(TreeFull::Space)?;
        Ok((node, place.value.get_or_insert_default()))
    }

    /// The child of a node for one level of a filter.
    fn child_for(&self, node: NodeId, level: &[u8]) -> Option<NodeId> {
        match level {
            b"+" => self.nodes.get(node as usize).map(|node| node.plus).filter(|child| *child != NONE),
            b"#" => self.nodes.get(node as usize).map(|node| node.hash).filter(|child| *child != NONE),
            _ => self.edges.get(&(node, *self.numbers.get(level)?)).copied(),
        }
    }

    fn add_child(&mut self, parent: NodeId, level: &[u8]) -> NodeId {
        let name = match level {
            b"+" => PLUS,
            b"#" => HASH,
            _ => self.name_for(level),
        };
        // Numbers of nodes and names stay below FILTER_NODES_MAX, which is checked to fit.
        let child = self.nodes.insert(Node::new(parent, name)) as NodeId;
        if let Some(node) = self.nodes.get_mut(parent as usize) {
            node.children += 1;
            match name {
                PLUS => node.plus = child,
                HASH => node.hash = child,
                _ => {
                    self.edges.insert((parent, name), child);
                }
            }
        }
        child
    }

    /// Undoes what [`Self::add_child`] did in the parent and to the name.
    fn cut(&mut self, parent: NodeId, name: u32) {
        if let Some(node) = self.nodes.get_mut(parent as usize) {
            node.children = node.children.saturating_sub(1);
            match name {
                PLUS => node.plus = NONE,
                HASH => node.hash = NONE,
                _ => {
                    self.edges.remove(&(parent, name));
                }
            }
        }
        if let Some(bearer) = self.names.get_mut(name as usize) {
            bearer.nodes = bearer.nodes.saturating_sub(1);
            if bearer.nodes == 0 {
                self.name_bytes -= bearer.text.len();
                self.numbers.remove(&bearer.text);
                self.names.try_remove(name as usize);
            }
        }
    }

    /// The number of a name, which gets one more node.
    fn name_for(&mut self, level: &[u8]) -> u32 {
        if let Some(number) = self.numbers.get(level).copied() {
            if let Some(name) = self.names.get_mut(number as usize) {
                name.nodes += 1;
            }
            return number;
        }
        let text: Arc<[u8]> = Arc::from(level);
        self.name_bytes += level.len();
        let number = self.names.insert(Name { text: Arc::clone(&text), nodes: 1 }) as u32;
        self.numbers.insert(text, number);
        number
    }

    fn text(&self, name: u32) -> &[u8] {
        match name {
            PLUS => b"+",
            HASH => b"#",
            _ => self.names.get(name as usize).map_or(&[], |name| &*name.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{filters, naive_matches, topics};
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn tree(filters: &[&str]) -> FilterTree<Vec<usize>> {
        let mut tree: FilterTree<Vec<usize>> = FilterTree::new(1);
        for (number, filter) in filters.iter().enumerate() {
            tree.insert(filter.as_bytes()).unwrap().1.push(number);
        }
        tree
    }

    fn found(tree: &FilterTree<Vec<usize>>, topic: &str) -> Vec<usize> {
        let mut out = Vec::new();
        tree.visit(topic.as_bytes(), |numbers| out.extend(numbers));
        out.sort_unstable();
        out
    }

    #[test]
    fn wildcards_match_as_the_standard_says() {
        let tree = tree(&[
            "#",
            "sport/tennis/player1/#",
            "sport/#",
            "+",
            "+/+",
            "/+",
            "sport/+",
            "sport/",
            "$SYS/#",
            "$SYS/+",
        ]);
        assert_eq!(found(&tree, "sport/tennis/player1"), [0, 1, 2]);
        assert_eq!(found(&tree, "sport/tennis/player1/score/wimbledon"), [0, 1, 2]);
        assert_eq!(found(&tree, "sport"), [0, 2, 3]);
        assert_eq!(found(&tree, "sport/"), [0, 2, 4, 6, 7]);
        assert_eq!(found(&tree, "/finance"), [0, 4, 5]);
        assert_eq!(found(&tree, "$SYS/uptime"), [8, 9]);
        assert_eq!(found(&tree, "$SYS"), [8]);
        assert_eq!(found(&tree, "a/$SYS"), [0, 4]);
        assert_eq!(found(&tree, "/"), [0, 4, 5]);
    }

    #[test]
    fn a_removed_filter_leaves_nothing_behind() {
        let mut tree = FilterTree::<u8>::new(1);
        let empty = tree.size();
        let nodes: Vec<_> =
            ["a/b/c", "a/b", "a/+/c", "#", "a/#"].map(|filter| tree.insert(filter.as_bytes()).unwrap().0).into();
        assert_eq!(tree.filter(nodes[2]), b"a/+/c");
        for node in nodes {
            assert_eq!(tree.remove(node), Some(0));
        }
        assert_eq!(tree.size(), empty);
        assert!(tree.edges.is_empty() && tree.numbers.is_empty() && tree.names.is_empty());
    }

    #[test]
    fn too_many_levels_or_too_much_text_is_refused_and_changes_nothing() {
        let mut tree = FilterTree::<u8>::new(1);
        assert_eq!(tree.insert("a/".repeat(TOPIC_LEVELS_MAX).as_bytes()).unwrap_err(), TreeFull::Levels);
        let mut n = 0;
        while tree.insert(format!("{n:060000}").as_bytes()).is_ok() {
            n += 1;
        }
        assert_eq!(n, FILTER_NAME_BYTES_MAX / 60_000);
        let size = tree.size();
        assert_eq!(tree.insert(format!("{n:060000}").as_bytes()).unwrap_err(), TreeFull::Space);
        assert!(tree.insert(format!("{:060000}", n - 1).as_bytes()).is_ok(), "one that is there takes no space");
        assert_eq!(tree.size(), size);
    }

    #[test]
    fn a_topic_deeper_than_any_filter_is_matched_by_hash_alone() {
        let tree = tree(&["#", "a/#", "+/+/x"]);
        assert_eq!(found(&tree, &format!("a{}", "/a".repeat(30_000))), [0, 1]);
    }

    proptest! {
        #[test]
        fn it_finds_what_a_naive_matcher_finds(
            filters in prop::collection::vec(filters(), 0..40),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
            topics in prop::collection::vec(topics(), 1..20),
        ) {
            let mut tree = FilterTree::<()>::new(7);
            let mut there: BTreeSet<String> = BTreeSet::new();
            for filter in &filters {
                tree.insert(filter.as_bytes()).unwrap();
                there.insert(filter.clone());
            }
            for index in removed.iter().filter(|_| !filters.is_empty()) {
                let filter = index.get(&filters);
                let node = tree.find(filter.as_bytes());
                prop_assert_eq!(node.is_some(), there.remove(filter));
                if let Some(node) = node {
                    prop_assert_eq!(tree.filter(node), filter.as_bytes());
                    tree.remove(node);
                }
            }
            for topic in topics {
                let mut count = 0;
                tree.visit(topic.as_bytes(), |()| count += 1);
                prop_assert_eq!(count, there.iter().filter(|filter| naive_matches(filter, &topic)).count());
            }
        }
    }
}
