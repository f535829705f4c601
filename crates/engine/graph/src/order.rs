//! Orders and cycles, without recursion: a chain may be as long as memory allows.

use std::collections::VecDeque;

/// For each node the nodes that it takes inputs from, with repeats where several edges come from one.
pub(crate) struct Sources(pub Vec<Vec<usize>>);

impl Sources {
    /// The length of the longest path that ends in each node (Kahn's algorithm).
    ///
    /// # Errors
    /// A node that lies on a cycle.
    pub(crate) fn depths(&self) -> Result<Vec<u32>, usize> {
        let count = self.0.len();
        let mut readers = vec![Vec::new(); count];
        let mut waiting = vec![0usize; count];
        for (node, sources) in self.0.iter().enumerate() {
            waiting[node] = sources.len();
            for &source in sources {
                readers[source].push(node);
            }
        }
        let mut depths = vec![0u32; count];
        let mut ready: VecDeque<usize> = (0..count).filter(|&node| waiting[node] == 0).collect();
        let mut done = 0;
        while let Some(node) = ready.pop_front() {
            done += 1;
            for &reader in &readers[node] {
                depths[reader] = depths[reader].max(depths[node] + 1);
                waiting[reader] -= 1;
                if waiting[reader] == 0 {
                    ready.push_back(reader);
                }
            }
        }
        if done == count { Ok(depths) } else { Err(self.on_a_cycle(&waiting)) }
    }

    /// What Kahn's algorithm leaves over is on a cycle or behind one, and each such node has a source that is left
    /// over too, so walking upstream must come round.
    fn on_a_cycle(&self, waiting: &[usize]) -> usize {
        let left = |node: &usize| waiting[*node] > 0;
        let mut node = (0..waiting.len()).find(left).unwrap_or(0);
        let mut seen = vec![false; waiting.len()];
        while !seen[node] {
            seen[node] = true;
            node = self.0[node].iter().copied().find(left).unwrap_or(node);
        }
        node
    }

    /// The target and all that it needs, sources before readers and the target last (depth-first post-order).
    ///
    /// Of several sources the deepest comes first, so that what is needed late, such as a denoiser, comes to life
    /// late and what was only needed on the way, such as a text encoder, can be freed before.
    pub(crate) fn closure(&self, target: usize, depths: &[u32]) -> Vec<usize> {
        let mut order = Vec::new();
        let mut seen = vec![false; self.0.len()];
        let mut stack = vec![(target, false)];
        while let Some((node, sources_done)) = stack.pop() {
            if sources_done {
                order.push(node);
                continue;
            }
            if std::mem::replace(&mut seen[node], true) {
                continue;
            }
            stack.push((node, true));
            let mut sources = self.0[node].clone();
            // The stack turns the order round: deepest last, and of equals the later port first.
            sources.reverse();
            sources.sort_by_key(|&source| depths[source]);
            stack.extend(sources.into_iter().filter(|&source| !seen[source]).map(|source| (source, false)));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_come_first_and_the_deepest_of_them_before_the_others() {
        // 0 load model, 1 load encoder, 2 encode(1), 3 sample(0, 2), 4 not needed
        let sources = Sources(vec![vec![], vec![], vec![1], vec![0, 2], vec![3]]);
        let depths = sources.depths().unwrap();
        assert_eq!(depths, [0, 0, 1, 2, 3]);
        assert_eq!(sources.closure(3, &depths), [1, 2, 0, 3]);
    }

    #[test]
    fn equals_keep_the_order_of_their_ports() {
        let sources = Sources(vec![vec![], vec![], vec![], vec![2, 0, 1, 0]]);
        let depths = sources.depths().unwrap();
        assert_eq!(sources.closure(3, &depths), [2, 0, 1, 3]);
    }

    #[test]
    fn a_node_on_the_cycle_is_named_and_not_one_behind_it() {
        // 0 reads 1, 1 reads 3, 3 reads 2 and 4, 2 reads 3; 4 is fine
        let sources = Sources(vec![vec![1], vec![3], vec![3], vec![4, 2], vec![]]);
        assert!([2, 3].contains(&sources.depths().unwrap_err()));
        assert_eq!(Sources(vec![vec![], vec![1]]).depths(), Err(1));
    }
}
