#include "cyfa/model/packed_weights.h"

namespace cyfa {
namespace {

constexpr int64_t kRows = 8;       // matrices of a pack are filled up to a multiple of so many rows: a row of the product is then aligned
constexpr int64_t kElements = 64;  // a pack begins at a multiple of so many elements

int64_t filled(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

}  // namespace

PackedWeights::PackedWeights(CausalLM& model) : model_(model), grads_(model.parameters().size()), packed_(model.parameters().size()) {
  const ParameterTable& table = model.table();
  const auto is_matrix = [&](ParameterId id) { return table.specs()[id].role == Role::kMatrix; };
  const auto rows_of = [&](const std::vector<ParameterId>& pack) {
    int64_t rows = 0;
    for (const ParameterId id : pack) rows += table.specs()[id].shape.at(0);
    return filled(rows, kRows);
  };
  const auto size_of = [&](const std::vector<ParameterId>& pack) {
    return is_matrix(pack[0]) ? rows_of(pack) * table.specs()[pack[0]].shape.at(1) : table.specs()[pack[0]].numel();
  };
  int64_t copies = 0, sums = 0;
  for (const auto& pack : table.packs()) {
    if (is_matrix(pack[0])) copies += filled(size_of(pack), kElements);
    sums += filled(size_of(pack), kElements);
  }
  const auto options = at::TensorOptions(model.device());
  copies_ = at::zeros({copies}, options.dtype(at::kBFloat16));
  sums_ = at::zeros({sums}, options.dtype(at::kFloat));
  copies = sums = 0;
  for (const auto& pack : table.packs()) {
    const int64_t size = size_of(pack), place = std::exchange(sums, sums + filled(size, kElements));
    const at::Tensor sum = sums_.narrow(0, place, size);
    if (!is_matrix(pack[0])) {
      const ParameterId id = pack[0];
      grads_[id] = sum.view(table.specs()[id].shape);
      packed_[id] = {model.parameters()[id].detach(), grads_[id]};
      continue;
    }
    const int64_t width = table.specs()[pack[0]].shape.at(1);
    const at::Tensor copy = copies_.narrow(0, std::exchange(copies, copies + filled(size, kElements)), size).view({-1, width});
    packed_[pack[0]] = {copy, sum.view({-1, width})};
    int64_t row = 0;
    for (const ParameterId id : pack) {
      const int64_t rows = table.specs()[id].shape.at(0);
      from_.push_back(model.parameters()[id].detach());
      to_.push_back(copy.narrow(0, row, rows));
      grads_[id] = packed_[pack[0]].sum.narrow(0, row, rows);
      row += rows;
    }
  }
}

Weights PackedWeights::begin_step() {
  sums_.zero_();
  at::_foreach_copy_(to_, from_);
  Weights w;
  w.packed = packed_;
  for (size_t id = 0; id < grads_.size(); ++id) {
    at::Tensor& p = model_.parameters()[id];
    if (grads_[id].defined()) {
      p.mutable_grad() = grads_[id];
      w.tensors.emplace_back();
    } else {
      w.tensors.push_back(p.to(model_.table().specs()[id].role == Role::kMatrix ? at::kBFloat16 : at::kFloat));
    }
  }
  return w;
}

}  // namespace cyfa
