//! Schedules, samplers, guidance, seeded noise and the SampleJob seam. No tensor library.
