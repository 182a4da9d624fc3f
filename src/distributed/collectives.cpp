#include "vlmtrain/distributed/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "distributed/backends.h"
#include "distributed/waiting_time.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/unwatched.h"

namespace vlmtrain::distributed {

namespace {

/// The size of what a rank says, and what it says where that is short, as most is: one call of all ranks, not two.
class ShortWords {
 public:
  explicit ShortWords(const std::string& text) {
    size_ = std::ssize(text);
    std::memcpy(letters_.data(), text.data(), std::min(text.size(), letters_.size()));
  }
  /// Of a rank, in what all have sent.
  ShortWords(const at::Tensor& all, size_t rank) {
    const auto* const own = static_cast<const char*>(all.const_data_ptr()) + rank * kBytes;
    std::memcpy(&size_, own, sizeof(size_));
    std::memcpy(letters_.data(), own + sizeof(size_), letters_.size());
  }

  at::Tensor tensor() const {
    at::Tensor bytes = at::empty({static_cast<int64_t>(kBytes)}, at::kByte);
    auto* const first = static_cast<char*>(bytes.mutable_data_ptr());
    std::memcpy(first, &size_, sizeof(size_));
    std::memcpy(first + sizeof(size_), letters_.data(), letters_.size());
    return bytes;
  }
  int64_t size() const { return size_; }
  bool is_all() const { return size_ <= std::ssize(letters_); }
  /// REQUIRES: is_all().
  std::string text() const { return {letters_.data(), static_cast<size_t>(size_)}; }

 private:
  static constexpr size_t kBytes = 128;
  int64_t size_ = 0;
  std::array<char, kBytes - sizeof(int64_t)> letters_{};
};

void count(Traffic& traffic, const at::Tensor& values) {
  traffic.bytes += static_cast<int64_t>(values.nbytes());
  ++traffic.calls;
}

}  // namespace

class Collectives::UnderWay {
 public:
  explicit UnderWay(const Backends& all) : all_(all), group_(all) {}

  /// A group with calls under way waits for them as it goes, and a lost rank will not come; else it closes its
  /// connections, by which the others see that this rank ends.
  ~UnderWay() {
    const bool is_over = !is_broken_ && sums_.empty() && gathers_.empty();
    for (Backends* const backends : {&copies_, &group_, &all_}) {
      if (is_over) {
        if (backends->device && (backends == &all_ || backends->device != all_.device)) backends->device->shutdown();
      } else {
        static_cast<void>(backends->host.release());
        static_cast<void>(backends->device.release());
      }
    }
  }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

  const Backends& all() const { return all_; }
  const Backends& group() const { return group_; }
  const Backends& copies() const { return copies_; }

  void share_in_groups(Backends group, Backends copies) {
    group_ = std::move(group);
    copies_ = std::move(copies);
  }

  void connect_device(Backends all, Backends group, Backends copies) {
    all_.device = std::move(all.device);
    group_.device = group.device ? std::move(group.device) : all_.device;
    copies_.device = std::move(copies.device);
  }

  void begin_sum(const Backends& ranks, at::Tensor values) {
    device_ = values.device();
    c10d::Backend& backend = ranks.of(values);
    std::vector<at::Tensor> tensors{std::move(values)};
    sums_.push_back(backend.allreduce(tensors));
  }

  void begin_sum_of_parts(at::Tensor values) {
    device_ = values.device();
    at::Tensor own = own_part(values);
    sums_.push_back(group_.of(values)._reduce_scatter_base(own, values));
  }

  int64_t begin_gather(at::Tensor all, at::Tensor own) {
    device_ = all.device();
    gathers_.emplace(next_gather_, group_.of(all)._allgather_base(all, own));
    return next_gather_++;
  }

  void finish_gather(int64_t ticket) {
    const auto gather = gathers_.extract(ticket);
    VLMTRAIN_CHECK(!gather.empty(), "parts of ranks that are not under way");
    waiting_.begin(device_);
    gather.mapped()->wait();
    waiting_.end(device_);
  }

  void finish_sums() {
    if (sums_.empty()) return;
    waiting_.begin(device_);
    for (const auto& sum : std::exchange(sums_, {})) sum->wait();
    waiting_.end(device_);
  }

  at::Tensor own_part(const at::Tensor& values) const {
    const int64_t part = values.numel() / group_.host->getSize();
    return values.narrow(0, group_.host->getRank() * part, part);
  }

  at::Tensor gather(at::Tensor own) {
    at::Tensor all = at::empty({all_.host->getSize() * own.numel()}, own.options());
    all_.host->_allgather_base(all, own)->wait();
    return all;
  }

  double waited_seconds() { return waiting_.seconds(); }
  bool are_waits_over() { return waiting_.is_over(); }
  bool has_device() const { return all_.device.defined(); }
  void set_broken() { is_broken_ = true; }

 private:
  Backends all_, group_, copies_;  // the group is all, and there are no copies, unless ranks share in groups
  std::vector<c10::intrusive_ptr<c10d::Work>> sums_;
  std::map<int64_t, c10::intrusive_ptr<c10d::Work>> gathers_;  // by ticket
  int64_t next_gather_ = 0;
  at::Device device_ = at::kCPU;  // of these
  WaitingTime waiting_;
  bool is_broken_ = false;
};

Collectives::Collectives(const Backends& backends, OnBroken on_broken)
    : under_way_(std::make_unique<UnderWay>(backends)), on_broken_(std::move(on_broken)) {}

Collectives::~Collectives() = default;

int64_t Collectives::world_size() const {
  return under_way_->all().host->getSize();
}

int64_t Collectives::group_size() const {
  return under_way_->group().host->getSize();
}

void Collectives::share_in_groups(Backends group, Backends copies) {
  under_way_->share_in_groups(std::move(group), std::move(copies));
}

void Collectives::connect_device(Backends all, Backends group, Backends copies) {
  under_way_->connect_device(std::move(all), std::move(group), std::move(copies));
}

template <class Act>
void Collectives::guarded(const Act& act) {
  // Gloo copies what it adds up.
  const memory::Unwatched unwatched;
  try {
    act();
  } catch (const std::exception& error) {
    under_way_->set_broken();
    if (on_broken_) on_broken_(error);
    throw;
  }
}

void Collectives::check_place(const at::Tensor& values) const {
  VLMTRAIN_CHECK(values.is_contiguous(), "sums of ranks are of contiguous values");
  VLMTRAIN_CHECK(values.is_cpu() || under_way_->has_device(), "the ranks' devices are not connected");
}

void Collectives::begin_sum(const at::Tensor& values) {
  check_place(values);
  count(summed_, values);
  guarded([&] { under_way_->begin_sum(under_way_->all(), values); });
}

void Collectives::begin_sum_in_group(const at::Tensor& values) {
  check_place(values);
  count(summed_, values);
  guarded([&] { under_way_->begin_sum(under_way_->group(), values); });
}

void Collectives::begin_sum_of_copies(const at::Tensor& values) {
  if (!under_way_->copies().host) return;
  check_place(values);
  count(summed_, values);
  guarded([&] { under_way_->begin_sum(under_way_->copies(), values); });
}

void Collectives::check_parts(const at::Tensor& values) const {
  check_place(values);
  VLMTRAIN_CHECK(values.dim() == 1 && values.numel() % group_size() == 0, "{} values in parts of {} ranks",
                 values.numel(), group_size());
}

void Collectives::begin_sum_of_parts(const at::Tensor& values) {
  check_parts(values);
  count(summed_in_parts_, values);
  guarded([&] { under_way_->begin_sum_of_parts(values); });
}

int64_t Collectives::begin_gather(const at::Tensor& parts) {
  check_parts(parts);
  return begin_gather(parts, under_way_->own_part(parts));
}

int64_t Collectives::begin_gather(const at::Tensor& all, const at::Tensor& own) {
  check_parts(all);
  VLMTRAIN_CHECK(own.is_contiguous() && own.numel() * group_size() == all.numel(), "{} of {} values of each rank",
                 own.numel(), all.numel());
  count(gathered_, all);
  int64_t ticket = 0;
  guarded([&] { ticket = under_way_->begin_gather(all, own); });
  return ticket;
}

void Collectives::finish_gather(int64_t ticket) {
  guarded([&] { under_way_->finish_gather(ticket); });
}

void Collectives::finish_sums() {
  guarded([&] { under_way_->finish_sums(); });
}

bool Collectives::are_sums_done(std::chrono::milliseconds patience) {
  constexpr auto kPause = std::chrono::milliseconds(5);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!under_way_->are_waits_over()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

double Collectives::waited_seconds() {
  return under_way_->waited_seconds();
}

std::vector<std::string> Collectives::each(const std::string& own) {
  std::vector<std::string> all(static_cast<size_t>(world_size()));
  guarded([&] {
    const at::Tensor short_words = under_way_->gather(ShortWords(own).tensor());
    bool are_short = true;
    int64_t longest = 0;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const ShortWords said(short_words, rank);
      are_short = are_short && said.is_all();
      longest = std::max(longest, said.size());
      if (said.is_all()) all[rank] = said.text();
    }
    if (are_short) return;
    at::Tensor letters = at::zeros({longest}, at::kByte);
    std::memcpy(letters.mutable_data_ptr(), own.data(), own.size());
    const at::Tensor gathered = under_way_->gather(letters);
    const auto* const first = static_cast<const char*>(gathered.const_data_ptr());
    for (size_t rank = 0; rank < all.size(); ++rank) {
      all[rank].assign(first + static_cast<int64_t>(rank) * longest,
                       static_cast<size_t>(ShortWords(short_words, rank).size()));
    }
  });
  return all;
}

}  // namespace vlmtrain::distributed
