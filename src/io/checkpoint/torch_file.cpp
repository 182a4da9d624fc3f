#include "io/checkpoint/torch_file.h"

#include <caffe2/serialize/inline_container.h>

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/torch_file.h"

namespace vlmtrain::io {

namespace {

using Kind = PickleValue::Kind;

// Storage classes that pickles of torch.save name, and their dtypes.
constexpr std::array<std::pair<std::string_view, c10::ScalarType>, 10> kDtypeByStorageType{{
    {"torch.DoubleStorage", c10::ScalarType::Double},
    {"torch.FloatStorage", c10::ScalarType::Float},
    {"torch.HalfStorage", c10::ScalarType::Half},
    {"torch.BFloat16Storage", c10::ScalarType::BFloat16},
    {"torch.LongStorage", c10::ScalarType::Long},
    {"torch.IntStorage", c10::ScalarType::Int},
    {"torch.ShortStorage", c10::ScalarType::Short},
    {"torch.CharStorage", c10::ScalarType::Char},
    {"torch.ByteStorage", c10::ScalarType::Byte},
    {"torch.BoolStorage", c10::ScalarType::Bool},
}};

std::optional<c10::ScalarType> parse_storage_type(std::string_view name) {
  const auto* const it = std::ranges::find(kDtypeByStorageType, name, [](const auto& entry) { return entry.first; });
  return it == kDtypeByStorageType.end() ? std::nullopt : std::optional(it->second);
}

/// Adapter that lets PyTorchStreamReader read a mapped file.
class MappedFileReader : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit MappedFileReader(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {}
  size_t size() const override { return file_->size(); }
  size_t read(uint64_t position, void* buffer, size_t bytes, const char* /*what*/) const override {
    if (position >= file_->size()) return 0;
    const size_t num_bytes_read = std::min(bytes, file_->size() - static_cast<size_t>(position));
    std::memcpy(buffer, file_->data() + position, num_bytes_read);
    return num_bytes_read;
  }

 private:
  std::shared_ptr<const MappedFile> file_;
};

/// Returns the items of a tuple or list of integers of at least 0, or nothing for other values.
std::optional<std::vector<int64_t>> to_non_negative_integers(const PickleValue& value) {
  if (value.kind != Kind::kTuple && value.kind != Kind::kList) return std::nullopt;
  std::vector<int64_t> integers;
  integers.reserve(value.items.size());
  for (const PickleValue* const item : value.items) {
    if (item->kind != Kind::kInt || item->integer < 0) return std::nullopt;
    integers.push_back(item->integer);
  }
  return integers;
}

/// Returns true if all elements of a strided tensor are within a storage of `num_storage_elements`
/// elements. `offset` and `strides` are in elements. REQUIRES: sizes and strides are not negative.
bool fits_in_storage(int64_t num_storage_elements, int64_t offset, const std::vector<int64_t>& sizes,
                     const std::vector<int64_t>& strides) {
  if (offset < 0 || sizes.size() != strides.size()) return false;
  int64_t num_elements = 1;
  int64_t last_element_offset = offset;
  bool is_empty = false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    is_empty = is_empty || sizes[i] == 0;
    const int64_t size = std::max<int64_t>(sizes[i], 1);
    int64_t max_dim_offset = 0;
    if (__builtin_mul_overflow(num_elements, size, &num_elements) ||
        __builtin_mul_overflow(size - 1, strides[i], &max_dim_offset) ||
        __builtin_add_overflow(last_element_offset, max_dim_offset, &last_element_offset)) {
      return false;
    }
  }
  return is_empty ? offset <= num_storage_elements : last_element_offset < num_storage_elements;
}

// Keys under which training scripts commonly save a state_dict.
constexpr std::array<std::string_view, 3> kStateDictKeys{"model", "state_dict", "model_state_dict"};

/// Returns the value of `key` in a dict, or nullptr. Of equal keys, the last one counts, as in
/// Python. Returns nullptr for values that are not a dict.
const PickleValue* find_dict_value(const PickleValue& dict, std::string_view key) {
  for (size_t i = dict.items.size(); dict.kind == Kind::kDict && i > 0; i -= 2) {
    if (dict.items[i - 2]->kind == Kind::kString && dict.items[i - 2]->text == key) return dict.items[i - 1];
  }
  return nullptr;
}

/// Returns true for a dict that maps at least one string to a tensor.
bool is_tensor_dict(const PickleValue* value) {
  if (value == nullptr || value->kind != Kind::kDict) return false;
  for (size_t i = 0; i < value->items.size(); i += 2) {
    if (value->items[i]->kind == Kind::kString && value->items[i + 1]->kind == Kind::kTensor) return true;
  }
  return false;
}

/// Returns the state_dict: the first of kStateDictKeys with tensors, else the top-level dict.
/// Throws data_error that names `source` if there is none.
const PickleValue& find_state_dict(const PickleValue& content, const std::string& source) {
  for (const std::string_view key : kStateDictKeys) {
    const PickleValue* const state_dict = find_dict_value(content, key);
    if (is_tensor_dict(state_dict)) return *state_dict;
  }
  if (is_tensor_dict(&content)) return content;
  for (const PickleValue* const value :
       {&content, find_dict_value(content, kStateDictKeys[0]), find_dict_value(content, kStateDictKeys[1])}) {
    if (value == nullptr || value->kind != Kind::kOpaque) continue;
    throw data_error(
        "{}: contains an object of the Python class {}, whose tensors cannot be read; save its state_dict() in Python, "
        "as safetensors",
        source, make_excerpt(value->text));
  }
  throw data_error(
      "{}: has no dict of names to tensors, neither at the top level nor under {}; save the model's state_dict() in "
      "Python, as safetensors",
      source, fmt::join(kStateDictKeys, ", "));
}

NamedTensors collect_tensors(const PickleValue& state_dict, const std::string& source) {
  NamedTensors tensors;
  std::set<std::string_view> names;
  for (size_t i = 0; i < state_dict.items.size(); i += 2) {
    const PickleValue& name = *state_dict.items[i];
    const PickleValue& value = *state_dict.items[i + 1];
    if (value.kind == Kind::kOpaque) {
      throw data_error("{}: {} needs Python's {}; convert the file to safetensors in Python, or remove the entry",
                       source, make_excerpt(name.text), make_excerpt(value.text));
    }
    if (value.kind != Kind::kTensor) continue;
    if (name.kind != Kind::kString || !names.insert(name.text).second) {
      throw data_error("{}: a tensor's name {} occurs twice or is not a string; write the file again", source,
                       make_excerpt(name.text));
    }
    tensors.emplace_back(name.text, value.tensor);
  }
  return tensors;
}

}  // namespace

template <class Read>
auto TorchArchive::read_or_throw(const Read& read) const {
  try {
    return read();
  } catch (const c10::Error&) {
    fail("its zip archive is damaged or truncated");
  }
}

TorchArchive::TorchArchive(const std::filesystem::path& path) : source_(path.string()) {
  const auto file = std::make_shared<const MappedFile>(path);
  throw_if_lfs_pointer(path, file->text());
  if (!file->text().starts_with("PK")) {
    throw data_error(
        "{}: not in the zip format that torch.save has written since PyTorch 1.6; load it in Python and save it again, "
        "as safetensors or with a newer torch.save",
        source_);
  }
  reader_ = read_or_throw([&] {
    return std::make_unique<caffe2::serialize::PyTorchStreamReader>(std::make_shared<MappedFileReader>(file));
  });
}

TorchArchive::~TorchArchive() = default;

void TorchArchive::fail(std::string_view reason) const {
  throw data_error("{}: {}; download or write it again", source_, reason);
}

std::string TorchArchive::read_pickle() {
  return read_or_throw([&] {
    if (!reader_->hasRecord("data.pkl")) fail("it is a zip archive that torch.save did not write");
    if (reader_->hasRecord("byteorder")) {
      const auto [data, bytes] = reader_->getRecord("byteorder");
      if (std::string_view(static_cast<const char*>(data.get()), bytes) != "little") {
        fail("it was written on a big-endian machine");
      }
    }
    const auto [data, bytes] = reader_->getRecord("data.pkl");
    return std::string(static_cast<const char*>(data.get()), bytes);
  });
}

const c10::Storage& TorchArchive::load_storage(const std::string& key) {
  // Tensors of the same storage, such as tied weights, share its memory.
  const auto it = storage_by_key_.find(key);
  if (it != storage_by_key_.end()) return it->second;
  const std::string record = "data/" + key;
  auto [data, bytes] = read_or_throw([&] {
    if (!reader_->hasRecord(record)) fail("the data of a tensor is missing");
    return reader_->getRecord(record);
  });
  return storage_by_key_.emplace(key, c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data)))
      .first->second;
}

/// `id` is the tuple ("storage", storage class, key, device, number of elements) that torch.save
/// writes (persistent_id in torch/serialization.py). The device is ignored. A storage of a class
/// without a supported dtype becomes opaque, so that an unneeded tensor of it does not fail the
/// file.
PickleValue TorchArchive::persistent_load(const PickleValue& id) {
  const auto& items = id.items;
  if (id.kind != Kind::kTuple || items.size() < 5 || items[0]->text != "storage" || items[1]->kind != Kind::kGlobal ||
      items[2]->kind != Kind::kString || items[4]->kind != Kind::kInt) {
    fail("its reference to a tensor's data has an unknown form");
  }
  const std::optional<c10::ScalarType> dtype = parse_storage_type(items[1]->text);
  if (!dtype) return {.kind = Kind::kOpaque, .text = items[1]->text};
  const c10::Storage& storage = load_storage(items[2]->text);
  const auto num_storage_elements = static_cast<int64_t>(storage.nbytes() / c10::elementSize(*dtype));
  const int64_t num_elements = items[4]->integer;
  if (num_elements < 0 || num_elements > num_storage_elements) fail("a tensor's data is shorter than declared");
  at::Tensor tensor = at::empty({0}, at::TensorOptions(*dtype));
  return {.kind = Kind::kStorage, .tensor = tensor.set_(storage, 0, {num_elements}, {1})};
}

/// Implements torch._utils._rebuild_tensor_v2. `arguments` are (storage, offset, sizes, strides,
/// …), in elements. The rest, such as requires_grad, is ignored.
PickleValue TorchArchive::rebuild_tensor(const PickleValue& arguments) const {
  const auto& items = arguments.items;
  if (items.size() < 4) fail("a tensor has no sizes");
  if (items[0]->kind == Kind::kOpaque) return *items[0];
  const auto sizes = to_non_negative_integers(*items[2]);
  const auto strides = to_non_negative_integers(*items[3]);
  if (items[0]->kind != Kind::kStorage || items[1]->kind != Kind::kInt || !sizes || !strides ||
      !fits_in_storage(items[0]->tensor.numel(), items[1]->integer, *sizes, *strides)) {
    fail("a tensor reaches beyond its data");
  }
  return {.kind = Kind::kTensor, .tensor = items[0]->tensor.as_strided(*sizes, *strides, items[1]->integer)};
}

PickleValue TorchArchive::call_function(const std::string& function, const PickleValue& arguments) {
  if (function == "collections.OrderedDict" && arguments.items.empty()) return {.kind = Kind::kDict};
  if (function == "torch._utils._rebuild_tensor_v2") return rebuild_tensor(arguments);
  if (function == "torch._utils._rebuild_parameter" || function == "torch._utils._rebuild_parameter_with_state") {
    if (!arguments.items.empty() && arguments.items[0]->kind == Kind::kTensor) return *arguments.items[0];
  }
  return {.kind = Kind::kOpaque, .text = function};
}

NamedTensors read_torch_file(const std::filesystem::path& path) {
  TorchArchive archive(path);
  const std::string pickle_content = archive.read_pickle();
  const Unpickler unpickler(pickle_content, path.string(), archive);
  return collect_tensors(find_state_dict(unpickler.result(), path.string()), path.string());
}

}  // namespace vlmtrain::io
