#include "kernels/cpu/vec16_avx2.h"

#include "kernels/cpu/attention_template.h"

namespace smartkv::kernels {

const AttentionKernels kAttentionAvx2{block, merge};

}  // namespace smartkv::kernels
