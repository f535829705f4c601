//! Run manager, run store, take store, assets and the catalog of model files.
