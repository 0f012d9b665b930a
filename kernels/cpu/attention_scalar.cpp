#include "kernels/cpu/vec16_scalar.h"

#include "kernels/cpu/attention_template.h"

namespace smartkv::kernels {

const AttentionKernels kAttentionScalar{block, merge};

}  // namespace smartkv::kernels
