#include "vlmtrain/distributed/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "distributed/backends.h"
#include "distributed/waiting_time.h"
#include "vlmtrain/base/error.h"

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
  explicit UnderWay(Backends backends) : backends_(std::move(backends)) {}

  /// A group with calls under way waits for them as it goes, and a lost rank will not come; else it closes its
  /// connections, by which the others see that this rank ends.
  ~UnderWay() {
    if (!is_broken_ && sums_.empty() && gathers_.empty()) {
      if (backends_.device) backends_.device->shutdown();
      return;
    }
    static_cast<void>(backends_.host.release());
    static_cast<void>(backends_.device.release());
  }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

  c10d::Backend& host() { return *backends_.host; }
  void connect_device(c10::intrusive_ptr<c10d::Backend> device) { backends_.device = std::move(device); }

  void begin_sum(at::Tensor values) {
    c10d::Backend& backend = backend_of(values);
    std::vector<at::Tensor> tensors{std::move(values)};
    sums_.push_back(backend.allreduce(tensors));
  }

  void begin_sum_of_parts(at::Tensor values) {
    at::Tensor own = own_part(values);
    sums_.push_back(backend_of(values)._reduce_scatter_base(own, values));
  }

  void begin_gather(at::Tensor parts) {
    at::Tensor own = own_part(parts);
    gathers_.push_back(backend_of(parts)._allgather_base(parts, own));
  }

  void finish_gather() {
    VLMTRAIN_CHECK(!gathers_.empty(), "no parts of ranks are under way");
    const auto gather = std::move(gathers_.front());
    gathers_.pop_front();
    waiting_.begin(device_);
    gather->wait();
    waiting_.end(device_);
  }

  void finish_sums() {
    if (sums_.empty()) return;
    waiting_.begin(device_);
    for (const auto& sum : std::exchange(sums_, {})) sum->wait();
    waiting_.end(device_);
  }

  at::Tensor gather(at::Tensor own) {
    at::Tensor all = at::empty({backends_.host->getSize() * own.numel()}, own.options());
    backends_.host->_allgather_base(all, own)->wait();
    return all;
  }

  double waited_seconds() { return waiting_.seconds(); }
  bool are_waits_over() { return waiting_.is_over(); }
  bool has_device() const { return backends_.device.defined(); }
  void set_broken() { is_broken_ = true; }

 private:
  c10d::Backend& backend_of(const at::Tensor& values) {
    device_ = values.device();
    return values.is_cpu() ? *backends_.host : *backends_.device;
  }

  at::Tensor own_part(const at::Tensor& values) const {
    const int64_t part = values.numel() / backends_.host->getSize();
    return values.narrow(0, backends_.host->getRank() * part, part);
  }

  Backends backends_;
  std::vector<c10::intrusive_ptr<c10d::Work>> sums_;
  std::deque<c10::intrusive_ptr<c10d::Work>> gathers_;
  at::Device device_ = at::kCPU;  // of these
  WaitingTime waiting_;
  bool is_broken_ = false;
};

Collectives::Collectives(Backends backends, OnBroken on_broken)
    : under_way_(std::make_unique<UnderWay>(std::move(backends))), on_broken_(std::move(on_broken)) {}

Collectives::~Collectives() = default;

int64_t Collectives::world_size() const {
  return under_way_->host().getSize();
}

void Collectives::connect_device(Backends backends) {
  under_way_->connect_device(std::move(backends.device));
}

template <class Act>
void Collectives::guarded(const Act& act) {
  try {
    act();
  } catch (const std::exception& error) {
    under_way_->set_broken();
    if (on_broken_) on_broken_(error);
    throw;
  }
}

void Collectives::begin_sum(const at::Tensor& values) {
  VLMTRAIN_CHECK(values.is_contiguous(), "sums of ranks are of contiguous values");
  VLMTRAIN_CHECK(values.is_cpu() || under_way_->has_device(), "the ranks' devices are not connected");
  count(summed_, values);
  guarded([&] { under_way_->begin_sum(values); });
}

void Collectives::check_parts(const at::Tensor& values) const {
  VLMTRAIN_CHECK(values.is_contiguous() && values.dim() == 1 && values.numel() % world_size() == 0,
                 "{} values in parts of {} ranks", values.numel(), world_size());
  VLMTRAIN_CHECK(values.is_cpu() || under_way_->has_device(), "the ranks' devices are not connected");
}

void Collectives::begin_sum_of_parts(const at::Tensor& values) {
  check_parts(values);
  count(summed_in_parts_, values);
  guarded([&] { under_way_->begin_sum_of_parts(values); });
}

void Collectives::begin_gather(const at::Tensor& parts) {
  check_parts(parts);
  count(gathered_, parts);
  guarded([&] { under_way_->begin_gather(parts); });
}

void Collectives::finish_gather() {
  guarded([&] { under_way_->finish_gather(); });
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
