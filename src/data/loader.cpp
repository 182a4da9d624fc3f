#include "vlmtrain/data/loader.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "data/bad_sample_log.h"
#include "data/record_problem.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/data/sample_stream.h"

namespace vlmtrain::data {
namespace {

constexpr size_t kNamedInError = 5;

struct Problem {
  std::string reason;
  std::string message;
  bool skippable = false;  ///< the sample's own fault, not the program's or the machine's
};

Problem describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const SampleError& bad) {
    return {bad.reason(), bad.what(), true};
  } catch (const UserError& bad) {
    return {"bad data", bad.what(), bad.code() == ExitCode::kBadData};
  } catch (const std::exception& unexpected) {
    return {"unexpected error", unexpected.what()};
  } catch (...) {
    return {"unexpected error", "an exception of unknown type"};
  }
}

UserError unusable_records(const std::string& dataset, const std::vector<io::Record>& records,
                           const std::vector<int64_t>& unusable) {
  std::string list;
  for (size_t i = 0; i < std::min(unusable.size(), kNamedInError); ++i) {
    const io::Record& record = records[static_cast<size_t>(unusable[i])];
    list += fmt::format("\n  line {}, sample {}: {}", record.line, record.id, record.problem);
  }
  if (unusable.size() > kNamedInError) list += fmt::format("\n  and {} more", unusable.size() - kNamedInError);
  return data_error("{}: {} of {} samples cannot be used; mend the file or set data.on_bad_sample=skip{}", dataset,
                    unusable.size(), records.size(), list);
}

IndexSource endless(EpochSequence sequence) {
  return [sequence = std::move(sequence)]() mutable { return std::optional{sequence.next()}; };
}

}  // namespace

class Loader::Impl {
 public:
  Impl(const std::vector<io::Record>& records, const SampleProcessor& processor, const LoaderSettings& settings,
       Cursor start, Ledger& ledger)
      : records_(records), settings_(settings), cursor_(start), ledger_(ledger) {
    check_start();
    settle_unusable_records();
    epoch_has_usable_ = start.position > 0;  // what lies before a resumed epoch's cut was not seen here
    stream_.emplace(
        endless(EpochSequence(std::ssize(records), settings.seed, start)),
        [&records, &processor](int64_t index) { return make_sample(processor, records, index); },
        SampleStream::Settings{
            .workers = settings.num_workers, .ahead = samples_ahead(), .bytes_ahead = settings.bytes_ahead});
  }

  ~Impl() { summarize(); }

  GlobalBatch next() {
    GlobalBatch batch;
    int64_t tokens = 0;
    while (!is_full(batch, tokens)) {
      StreamItem item = draw(batch.wait_seconds);
      if (item.error) {
        settle_bad_sample(item.index, item.error);
      } else {
        if (is_nearer_without(batch, tokens, item.sample)) {
          held_back_ = std::move(item);
          break;
        }
        tokens += item.sample.tokens();
        epoch_has_usable_ = true;
        batch.label_tokens += item.sample.label_tokens();
        item.sample.seed = draw_seed();
        batch.samples.push_back(std::move(item.sample));
      }
      advance();
    }
    batch.next = cursor_;
    warn_once_if_held_back();
    return batch;
  }

 private:
  /// Of the sample at the cursor: each place of each epoch has its own.
  uint64_t draw_seed() const {
    return stream_seed(settings_.seed, "sample",
                       {static_cast<uint64_t>(cursor_.epoch), static_cast<uint64_t>(cursor_.position)});
  }

  void check_start() const {
    VLMTRAIN_CHECK(ledger_.samples() == std::ssize(records_), "a ledger of {} samples for {} records",
                   ledger_.samples(), records_.size());
    VLMTRAIN_CHECK(settings_.global_batch_size >= 1, "a global batch of {}", settings_.global_batch_size);
    if (records_.empty()) throw data_error("{}: holds no samples; name another file in data.train", ledger_.dataset());
    if (cursor_.position >= std::ssize(records_)) {
      throw data_error(
          "{}: the run to resume goes on at sample {} of an epoch, but the file holds {}; resume with the file that it "
          "was started with",
          ledger_.dataset(), cursor_.position, records_.size());
    }
  }

  void warn_once_if_held_back() {
    if (warned_of_bytes_ || !stream_->was_held_back()) return;
    warned_of_bytes_ = true;
    spdlog::warn(
        "decoded samples wait in {} of host memory and no more, so that fewer than {} are ready ahead; more memory for "
        "the job, or a lower data.image_max_pixels, makes room",
        format_bytes(settings_.bytes_ahead), samples_ahead());
  }

  int64_t samples_ahead() const {
    return settings_.samples_ahead > 0 ? settings_.samples_ahead : 2 * settings_.global_batch_size;
  }

  void settle_unusable_records() {
    std::vector<int64_t> unusable;
    for (int64_t index = 0; index < std::ssize(records_); ++index) {
      if (!records_[static_cast<size_t>(index)].problem.empty()) unusable.push_back(index);
    }
    for (const int64_t index : unusable) {
      const SampleError error = record_problem(records_[static_cast<size_t>(index)]);
      settle(index, {error.reason(), error.what(), true});
    }
    if (settings_.on_bad_sample == BadSamplePolicy::kFail && !unusable.empty()) {
      throw unusable_records(ledger_.dataset(), records_, unusable);
    }
    summarize();
  }

  bool is_full(const GlobalBatch& batch, int64_t tokens) const {
    return std::ssize(batch.samples) >= settings_.global_batch_size ||
           (settings_.global_batch_tokens && tokens >= *settings_.global_batch_tokens);
  }

  bool is_nearer_without(const GlobalBatch& batch, int64_t tokens, const Sample& sample) const {
    if (!settings_.global_batch_tokens || batch.samples.empty()) return false;
    const int64_t goal = *settings_.global_batch_tokens;
    return tokens + sample.tokens() - goal > goal - tokens;
  }

  StreamItem draw(double& wait_seconds) {
    if (held_back_) return *std::exchange(held_back_, std::nullopt);
    const auto begin = std::chrono::steady_clock::now();
    auto item = stream_->next();
    wait_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    VLMTRAIN_CHECK(item.has_value(), "the endless sequence ended");
    return std::move(*item);
  }

  void settle_bad_sample(int64_t index, const std::exception_ptr& error) {
    const Problem problem = describe(error);
    if (settle(index, problem)) return;
    if (problem.skippable) {
      throw data_error("{}, line {}: {}; or go on without such samples: data.on_bad_sample=skip", ledger_.dataset(),
                       records_[static_cast<size_t>(index)].line, problem.message);
    }
    spdlog::error("{} stopped the run: {}", name(index), problem.message);
    std::rethrow_exception(error);
  }

  /// Enters the problem in the ledger; true if the run goes on without the sample.
  bool settle(int64_t index, const Problem& problem) {
    const std::string& id = records_[static_cast<size_t>(index)].id;
    if (!problem.skippable || settings_.on_bad_sample == BadSamplePolicy::kFail) {
      ledger_.mark_failed(index, id, problem.reason, problem.message);
      return false;
    }
    const bool known = ledger_.status(index) == SampleStatus::kDropped;  // in an earlier epoch, or before a resume
    ledger_.mark_dropped(index, id, problem.reason, problem.message);
    if (!known) log_.warn(problem.message);
    return true;
  }

  void advance() {
    const Cursor following = after(cursor_, std::ssize(records_));
    if (following.epoch != cursor_.epoch) {
      summarize();
      if (!epoch_has_usable_) {
        throw data_error("{}: none of the {} samples can be used; ledger.json names each with the reason",
                         ledger_.dataset(), records_.size());
      }
      epoch_has_usable_ = false;
    }
    cursor_ = following;
  }

  void summarize() { log_.summarize(ledger_.count(SampleStatus::kDropped), ledger_.samples()); }

  std::string name(int64_t index) const {
    const io::Record& record = records_[static_cast<size_t>(index)];
    return fmt::format("{}: sample {} (line {})", ledger_.dataset(), record.id, record.line);
  }

  const std::vector<io::Record>& records_;
  LoaderSettings settings_;
  Cursor cursor_;
  Ledger& ledger_;
  BadSampleLog log_;
  bool epoch_has_usable_ = false;
  bool warned_of_bytes_ = false;
  std::optional<StreamItem> held_back_;  // what the cursor is at, drawn already
  std::optional<SampleStream> stream_;
};

Loader::Loader(const std::vector<io::Record>& records, const SampleProcessor& processor, LoaderSettings settings,
               Cursor start, Ledger& ledger)
    : impl_(std::make_unique<Impl>(records, processor, settings, start, ledger)) {}

Loader::~Loader() = default;

GlobalBatch Loader::next() {
  return impl_->next();
}

}  // namespace vlmtrain::data
