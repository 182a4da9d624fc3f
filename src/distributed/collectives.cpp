#include "vlmtrain/distributed/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "distributed/backends.h"
#include "distributed/waiting_time.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::distributed {

class Collectives::UnderWay {
 public:
  explicit UnderWay(Backends backends) : backends_(std::move(backends)) {}

  /// A group with calls under way waits for them as it goes, and a lost rank will not come; else it closes its
  /// connections, by which the others see that this rank ends.
  ~UnderWay() {
    if (!is_broken_ && sums_.empty()) {
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
    device_ = values.device();
    c10d::Backend& backend = values.is_cpu() ? *backends_.host : *backends_.device;
    std::vector<at::Tensor> tensors{std::move(values)};
    sums_.push_back(backend.allreduce(tensors));
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
  Backends backends_;
  std::vector<c10::intrusive_ptr<c10d::Work>> sums_;
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
  traffic_.bytes += static_cast<int64_t>(values.nbytes());
  ++traffic_.calls;
  guarded([&] { under_way_->begin_sum(values); });
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
    at::Tensor size = at::empty({1}, at::kLong);
    *size.mutable_data_ptr<int64_t>() = std::ssize(own);
    const at::Tensor sizes = under_way_->gather(size);
    const auto* const lengths = sizes.const_data_ptr<int64_t>();
    const int64_t longest = *std::max_element(lengths, lengths + all.size());
    if (longest == 0) return;
    at::Tensor letters = at::zeros({longest}, at::kByte);
    std::memcpy(letters.mutable_data_ptr(), own.data(), own.size());
    const at::Tensor gathered = under_way_->gather(letters);
    const auto* const first = static_cast<const char*>(gathered.const_data_ptr());
    for (size_t rank = 0; rank < all.size(); ++rank) {
      all[rank].assign(first + static_cast<int64_t>(rank) * longest, static_cast<size_t>(lengths[rank]));
    }
  });
  return all;
}

}  // namespace vlmtrain::distributed
