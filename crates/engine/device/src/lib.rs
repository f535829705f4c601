//! The device policy: detection, profiles, the fit ladder and placements.
