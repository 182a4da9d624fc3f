#include "vlmtrain/data/loader.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "data/bad_sample_log.h"
#include "data/problem.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/data/sample_stream.h"

namespace vlmtrain::data {
namespace {

IndexSource endless(EpochSequence sequence) {
  return [sequence = std::move(sequence)]() mutable { return std::optional{sequence.next()}; };
}

}  // namespace

class Loader::Impl {
 public:
  Impl(const io::Records& records, const SampleProcessor& processor, const LoaderSettings& settings, Cursor start,
       Ledger& ledger)
      : records_(records), settings_(settings), start_(start), cursor_(start), stream_place_(start), ledger_(ledger) {
    check_start();
    epoch_has_usable_ = start.position > 0;  // what lies before a resumed epoch's cut was not seen here
    stream_.emplace(
        endless(EpochSequence(records.size(), settings.seed, start)),
        [this, &processor, dropped = dropped_samples()](int64_t index) {
          return dropped[static_cast<size_t>(index)] ? Sample() : make_sample(processor, records_.at(index), index);
        },
        SampleStream::Settings{
            .workers = settings.num_workers, .ahead = samples_ahead(), .bytes_ahead = settings.bytes_ahead});
  }

  ~Impl() { summarize(); }

  GlobalBatch next() {
    GlobalBatch batch;
    fill(batch);
    return batch;
  }

  void fill(GlobalBatch& batch) {
    int64_t tokens = 0;
    for (const Sample& sample : batch.samples) tokens += sample.tokens();
    while (!is_full(batch, tokens)) {
      Drawn drawn = draw(batch.wait_seconds);
      if (ledger_.status(drawn.item.index) == SampleStatus::kDropped) continue;
      if (drawn.item.error) {
        settle_bad_sample(drawn.item.index, drawn.item.error);
        continue;
      }
      Sample& sample = drawn.item.sample;
      epoch_has_usable_ = true;
      if (is_nearer_without(batch, tokens, sample)) {
        held_back_.push_front(std::move(drawn));
        break;
      }
      cursor_ = after(drawn.place, records_.size());
      tokens += sample.tokens();
      sample.seed = draw_seed(drawn.place);
      batch.places[sample.seed] = drawn.place;
      batch.samples.push_back(std::move(sample));
    }
    batch.label_tokens = 0;
    for (const Sample& sample : batch.samples) batch.label_tokens += sample.label_tokens();
    batch.next = cursor_;
    warn_once_if_held_back();
  }

  void put_back(GlobalBatch batch) {
    std::map<std::pair<int64_t, int64_t>, Sample*> by_place;
    for (Sample& sample : batch.samples) {
      const Cursor place = batch.places.at(sample.seed);
      by_place[{place.epoch, place.position}] = &sample;
    }
    for (auto entry = by_place.rbegin(); entry != by_place.rend(); ++entry) {
      const auto& [place, sample] = *entry;
      const int64_t index = sample->index;
      held_back_.push_front({{.index = index, .sample = std::move(*sample), .error = {}},
                             {.epoch = place.first, .position = place.second}});
    }
    if (!held_back_.empty()) cursor_ = held_back_.front().place;
  }

 private:
  /// What a place of the order gave.
  struct Drawn {
    StreamItem item;
    Cursor place;
  };

  /// Each place of each epoch has its own.
  uint64_t draw_seed(Cursor place) const {
    return stream_seed(settings_.seed, "sample",
                       {static_cast<uint64_t>(place.epoch), static_cast<uint64_t>(place.position)});
  }

  /// Whether a sample was dropped before it is asked for, by index; for the threads, which cannot read the ledger.
  std::vector<char> dropped_samples() const {
    std::vector<char> dropped(static_cast<size_t>(records_.size()));
    for (size_t i = 0; i < dropped.size(); ++i) {
      dropped[i] = ledger_.status(static_cast<int64_t>(i)) == SampleStatus::kDropped ? 1 : 0;
    }
    return dropped;
  }

  void check_start() const {
    VLMTRAIN_CHECK(ledger_.samples() == records_.size(), "a ledger of {} samples for {} records", ledger_.samples(),
                   records_.size());
    VLMTRAIN_CHECK(settings_.global_batch_size >= 1, "a global batch of {}", settings_.global_batch_size);
    if (records_.size() == 0)
      throw data_error("{}: holds no samples; name another file in data.train", ledger_.dataset());
    if (cursor_.position >= records_.size()) {
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

  bool is_full(const GlobalBatch& batch, int64_t tokens) const {
    return std::ssize(batch.samples) >= settings_.global_batch_size ||
           (settings_.global_batch_tokens && tokens >= *settings_.global_batch_tokens);
  }

  bool is_nearer_without(const GlobalBatch& batch, int64_t tokens, const Sample& sample) const {
    if (!settings_.global_batch_tokens || batch.samples.empty()) return false;
    const int64_t goal = *settings_.global_batch_tokens;
    return tokens + sample.tokens() - goal > goal - tokens;
  }

  Drawn draw(double& wait_seconds) {
    if (!held_back_.empty()) {
      Drawn drawn = std::move(held_back_.front());
      held_back_.pop_front();
      return drawn;
    }
    const auto begin = std::chrono::steady_clock::now();
    auto item = stream_->next();
    wait_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    VLMTRAIN_CHECK(item.has_value(), "the endless sequence ended");
    if (stream_place_.position == 0) begin_epoch();
    const Cursor place = stream_place_;
    stream_place_ = after(place, records_.size());
    return {std::move(*item), place};
  }

  void settle_bad_sample(int64_t index, const std::exception_ptr& error) {
    const Problem problem = describe(error);
    if (settle(index, problem)) return;
    if (problem.skippable) {
      throw data_error("{}, {}: {}; or go on without such samples: data.on_bad_sample=skip", ledger_.dataset(),
                       records_.text_at(index).place, problem.message);
    }
    spdlog::error("{} stopped the run: {}", name(index), problem.message);
    std::rethrow_exception(error);
  }

  /// Enters the problem in the ledger; true if the run goes on without the sample.
  bool settle(int64_t index, const Problem& problem) {
    const std::string id = records_.text_at(index).id;
    if (!problem.skippable || settings_.on_bad_sample == BadSamplePolicy::kFail) {
      ledger_.mark_failed(index, id, problem.reason, problem.message);
      return false;
    }
    const bool known = ledger_.status(index) == SampleStatus::kDropped;  // in an earlier epoch, or before a resume
    ledger_.mark_dropped(index, id, problem.reason, problem.message);
    if (!known) log_.warn(problem.message);
    return true;
  }

  /// Before the first sample of an epoch.
  void begin_epoch() {
    if (stream_place_ == start_) return;
    summarize();
    if (!epoch_has_usable_) {
      throw data_error("{}: none of the {} samples can be used; ledger.json names each with the reason",
                       ledger_.dataset(), records_.size());
    }
    epoch_has_usable_ = false;
  }

  void summarize() { log_.summarize(ledger_.count(SampleStatus::kDropped), ledger_.samples()); }

  std::string name(int64_t index) const {
    const io::Record record = records_.text_at(index);
    return fmt::format("{}: sample {} ({})", ledger_.dataset(), record.id, record.place);
  }

  const io::Records& records_;
  LoaderSettings settings_;
  const Cursor start_;
  Cursor cursor_;        // behind the last sample that was handed out
  Cursor stream_place_;  // of the stream's next
  Ledger& ledger_;
  BadSampleLog log_;
  bool epoch_has_usable_ = false;
  bool warned_of_bytes_ = false;
  std::deque<Drawn> held_back_;  // what comes before the stream's next, in order
  std::optional<SampleStream> stream_;
};

Loader::Loader(const io::Records& records, const SampleProcessor& processor, LoaderSettings settings, Cursor start,
               Ledger& ledger)
    : impl_(std::make_unique<Impl>(records, processor, settings, start, ledger)) {}

Loader::~Loader() = default;

GlobalBatch Loader::next() {
  return impl_->next();
}

void Loader::fill(GlobalBatch& batch) {
  impl_->fill(batch);
}

void Loader::put_back(GlobalBatch batch) {
  impl_->put_back(std::move(batch));
}

}  // namespace vlmtrain::data
