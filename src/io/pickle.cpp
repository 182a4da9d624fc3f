#include "io/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

/// Named as in pickletools.
enum class Pickle::Opcode : unsigned char {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kEmptyList = ']',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kEmptyTuple = ')',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

Pickle::Pickle(std::string_view program, std::string source, PickleHost& host)
    : most_places_(program.size()), rest_(program), source_(std::move(source)), host_(&host) {
  while (true) {
    const auto byte = static_cast<unsigned char>(take(1)[0]);
    const auto opcode = static_cast<Opcode>(byte);
    if (opcode == Opcode::kStop) break;
    if (!push_constant(opcode) && !push_text(opcode) && !push_tuple(opcode) && !fill_container(opcode) &&
        !use_memo(opcode) && !use_globals(opcode)) {
      fail(fmt::format("instruction 0x{:02x} is not supported", byte));
    }
  }
  result_ = pop();
}

void Pickle::fail(std::string_view reason) const {
  throw data_error(
      "{}: its list of tensors cannot be read ({}): download or write the file again, or convert it to safetensors in "
      "Python",
      source_, reason);
}

std::string_view Pickle::take(uint64_t bytes) {
  if (bytes > rest_.size()) fail("it is truncated");
  const std::string_view taken = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return taken;
}

uint64_t Pickle::take_number(size_t bytes) {
  uint64_t number = 0;
  const std::string_view taken = take(bytes);
  for (size_t i = bytes; i-- > 0;) number = number << 8 | static_cast<unsigned char>(taken[i]);
  return number;
}

std::string Pickle::take_line() {
  const size_t end = rest_.find('\n');
  if (end == std::string_view::npos) fail("it is truncated");
  std::string line(take(end));
  take(1);
  return line;
}

void Pickle::push(PickleValue value) {
  stack_.push_back(&values_.emplace_back(std::move(value)));
}

PickleValue& Pickle::top() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("a value is missing");
  return *stack_.back();
}

PickleValue* Pickle::pop() {
  PickleValue* const value = &top();
  stack_.pop_back();
  return value;
}

std::vector<const PickleValue*> Pickle::pop_to_mark() {
  if (marks_.empty()) fail("a mark is missing");
  const size_t count = stack_.size() - marks_.back();
  std::vector<const PickleValue*> items = pop_last(count);
  marks_.pop_back();
  return items;
}

std::vector<const PickleValue*> Pickle::pop_last(size_t count) {
  std::vector<const PickleValue*> items(count);
  for (size_t i = count; i-- > 0;) items[i] = pop();
  return items;
}

bool Pickle::push_constant(Opcode opcode) {
  switch (opcode) {
    case Opcode::kProto:
      take(1);
      return true;
    case Opcode::kFrame:
      take(8);
      return true;
    case Opcode::kNone:
      push({});
      return true;
    case Opcode::kNewTrue:
    case Opcode::kNewFalse:
      push({.kind = Kind::kBool});
      return true;
    case Opcode::kBinFloat:
      take(8);
      push({.kind = Kind::kFloat});
      return true;
    case Opcode::kBinInt:
      push({.kind = Kind::kInteger, .integer = static_cast<int32_t>(take_number(4))});
      return true;
    case Opcode::kBinInt1:
      push({.kind = Kind::kInteger, .integer = static_cast<int64_t>(take_number(1))});
      return true;
    case Opcode::kBinInt2:
      push({.kind = Kind::kInteger, .integer = static_cast<int64_t>(take_number(2))});
      return true;
    case Opcode::kLong1:
      push_integer(take(take_number(1)));
      return true;
    default:
      return false;
  }
}

/// Of two's complement, little-endian, with as many bytes as it needs.
void Pickle::push_integer(std::string_view bytes) {
  if (bytes.size() > sizeof(int64_t)) fail("a number has more than 64 bits");
  const bool is_negative = !bytes.empty() && static_cast<unsigned char>(bytes.back()) >= 0x80;
  uint64_t number = is_negative ? ~uint64_t{0} : 0;
  for (size_t i = bytes.size(); i-- > 0;) number = number << 8 | static_cast<unsigned char>(bytes[i]);
  push({.kind = Kind::kInteger, .integer = static_cast<int64_t>(number)});
}

bool Pickle::push_text(Opcode opcode) {
  size_t length_bytes = 0;
  switch (opcode) {
    case Opcode::kShortBinUnicode:
      length_bytes = 1;
      break;
    case Opcode::kBinUnicode:
      length_bytes = 4;
      break;
    case Opcode::kBinUnicode8:
      length_bytes = 8;
      break;
    default:
      return false;
  }
  push({.kind = Kind::kText, .text = std::string(take(take_number(length_bytes)))});
  return true;
}

bool Pickle::push_tuple(Opcode opcode) {
  std::vector<const PickleValue*> items;
  switch (opcode) {
    case Opcode::kEmptyTuple:
      break;
    case Opcode::kTuple1:
      items = pop_last(1);
      break;
    case Opcode::kTuple2:
      items = pop_last(2);
      break;
    case Opcode::kTuple3:
      items = pop_last(3);
      break;
    case Opcode::kTuple:
      items = pop_to_mark();
      break;
    default:
      return false;
  }
  push({.kind = Kind::kTuple, .items = std::move(items)});
  return true;
}

bool Pickle::fill_container(Opcode opcode) {
  switch (opcode) {
    case Opcode::kMark:
      marks_.push_back(stack_.size());
      return true;
    case Opcode::kPop:
      pop();
      return true;
    case Opcode::kPopMark:
      pop_to_mark();
      return true;
    case Opcode::kEmptyList:
      push({.kind = Kind::kList});
      return true;
    case Opcode::kEmptyDict:
      push({.kind = Kind::kDict});
      return true;
    case Opcode::kAppend:
      add_items(Kind::kList, pop_last(1));
      return true;
    case Opcode::kAppends:
      add_items(Kind::kList, pop_to_mark());
      return true;
    case Opcode::kSetItem:
      add_items(Kind::kDict, pop_last(2));
      return true;
    case Opcode::kSetItems:
      add_items(Kind::kDict, pop_to_mark());
      return true;
    default:
      return false;
  }
}

void Pickle::add_items(Kind kind, const std::vector<const PickleValue*>& items) {
  if (kind == Kind::kDict && items.size() % 2 != 0) fail("a key has no value");
  PickleValue& container = top();
  if (container.kind == Kind::kObject) return;  // a list or a dict by inheritance: nobody looks into it
  if (container.kind != kind) fail("items are added to what has none");
  container.items.insert(container.items.end(), items.begin(), items.end());
}

bool Pickle::use_memo(Opcode opcode) {
  switch (opcode) {
    case Opcode::kBinPut:
      remember(take_number(1));
      return true;
    case Opcode::kLongBinPut:
      remember(take_number(4));
      return true;
    case Opcode::kMemoize:
      remember(memo_.size());
      return true;
    case Opcode::kBinGet:
      recall(take_number(1));
      return true;
    case Opcode::kLongBinGet:
      recall(take_number(4));
      return true;
    default:
      return false;
  }
}

void Pickle::remember(uint64_t place) {
  PickleValue& value = top();
  if (place >= most_places_) fail("it remembers a value in a place out of order");
  if (place >= memo_.size()) memo_.resize(place + 1, nullptr);
  memo_[place] = &value;
}

void Pickle::recall(uint64_t place) {
  if (place >= memo_.size() || memo_[place] == nullptr) fail("it recalls a value that it has not remembered");
  stack_.push_back(memo_[place]);
}

bool Pickle::use_globals(Opcode opcode) {
  switch (opcode) {
    case Opcode::kGlobal: {
      const std::string module = take_line();
      push({.kind = Kind::kGlobal, .text = module + '.' + take_line()});
      return true;
    }
    case Opcode::kStackGlobal: {
      const auto names = pop_last(2);
      if (names[0]->kind != Kind::kText || names[1]->kind != Kind::kText) fail("a function's name is no text");
      push({.kind = Kind::kGlobal, .text = names[0]->text + '.' + names[1]->text});
      return true;
    }
    case Opcode::kReduce:
    case Opcode::kNewObj:
      call();
      return true;
    case Opcode::kBuild:  // attributes of an object: those of a dict (OrderedDict's _metadata) are of no use here
      pop();
      top();
      return true;
    case Opcode::kBinPersId:
      push(host_->persistent(*pop()));
      return true;
    default:
      return false;
  }
}

void Pickle::call() {
  const PickleValue* const arguments = pop();
  const PickleValue* const function = pop();
  if (arguments->kind != Kind::kTuple) fail("arguments of a call are no tuple");
  // A class may itself be what a call returned.
  const bool is_named = function->kind == Kind::kGlobal;
  if (!is_named && function->kind != Kind::kObject) fail("it calls what is no function");
  push(is_named ? host_->call(function->text, *arguments) : PickleValue{.kind = Kind::kObject, .text = function->text});
}

}  // namespace vlmtrain::io
