#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <string>

#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/loader/loader.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// A handler of the bad samples of a Loader. Applies the policy, writes the ledger, and makes all
/// ranks drop the same samples. Not thread-safe.
class BadSampleHandler {
 public:
  /// The arguments must outlive the handler.
  BadSampleHandler(const io::Records& records, Ledger& ledger, const LoaderSettings& settings)
      : records_(records), ledger_(ledger), settings_(settings) {}

  bool is_dropped(int64_t index) const { return ledger_.status(index) == SampleStatus::kDropped; }

  /// Drops the sample. Throws UserError (kBadData) if the policy stops the run, and rethrows errors
  /// that the sample did not cause. REQUIRES: a single rank.
  void handle_failure(int64_t index, const std::exception_ptr& error);

  // With several ranks, a bad sample of this rank stays in the batch until sync_bad_samples() has
  // sent its index to all ranks.

  /// Adds a bad sample of this rank. Rethrows errors that the sample did not cause.
  void add(int64_t index, const std::exception_ptr& error);
  /// Forgets a bad sample, because another rank processes it.
  void forget_failure(int64_t index) { unsynced_failures_.erase(index); }
  /// Returns whether the sample is a bad one of this rank that sync_bad_samples() has not sent yet.
  bool contains(int64_t index) const { return unsynced_failures_.contains(index); }

  /// Exchanges the bad samples, shrink infos and notices of a batch with the other ranks, and
  /// removes all bad samples from it. Returns whether there were any; false for a single rank. A
  /// collective. Throws UserError (kBadData) on all ranks if the policy stops the run.
  bool sync_bad_samples(GlobalBatch& batch);

  /// Logs the number of dropped samples if some of them were not logged.
  void log_summary() { bad_sample_log_.log_summary(ledger_.count(SampleStatus::kDropped), ledger_.num_samples()); }

 private:
  bool add_failure_to_ledger(int64_t index, const LoadFailure& failure);
  /// Returns the error for a bad sample that stops the run.
  UserError make_bad_sample_error(int64_t index, const LoadFailure& failure) const;
  /// Returns the message of this rank for sync_bad_samples().
  std::string serialize_batch_status(const GlobalBatch& batch) const;

  const io::Records& records_;
  Ledger& ledger_;
  const LoaderSettings& settings_;
  BadSampleLog bad_sample_log_;
  std::map<int64_t, LoadFailure> unsynced_failures_;  // of this rank, by index, since the last sync_bad_samples()
};

}  // namespace vlmtrain::data
