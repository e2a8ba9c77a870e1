package wheel

const (
	// chunkBits makes a chunk 4096 nodes: 128 KiB with values of 8 bytes. Smaller chunks make the
	// directory outgrow the first cache at 10⁷ timers, larger ones are given back more seldom.
	chunkBits = 12
	chunkLen  = 1 << chunkBits
	maxChunks = 1 << (32 - chunkBits)
)

// node is a timer:
//
//	when 8 │ next 4 │ prev 4 │ generation 4 │ bucket 2 │ – 2 │ value
//
// 32 bytes for values of up to 8 bytes. next and prev link the timers of a bucket; 0 ends a list. A
// free node has generation 0, and next links the free nodes of its chunk.
type node[T any] struct {
	when       uint64
	next, prev uint32
	generation uint32
	bucket     bucket
	value      T
}

// chunk is the account of one chunk of nodes. 0 is no chunk.
type chunk struct {
	free       uint32 // first free node below used; 0: none
	used       uint32 // nodes from here on were never used
	live       uint32
	next, prev uint32 // open or vacant chunks
}

// slab hands out nodes by number. A node's number is its chunk's place in the directory and its own
// in the chunk; place 0 stays empty, so that 0 is no node. Chunks without a live node are given
// back, but for one, so that a timer that comes and goes does not allocate a chunk each time.
type slab[T any] struct {
	nodes  []*[chunkLen]node[T]
	chunks []chunk
	open   uint32 // first chunk with room
	vacant uint32 // first place in the directory without a chunk
	spare  uint32 // the one chunk that is kept empty
}

// at returns node i, which must be live.
func (s *slab[T]) at(i uint32) *node[T] { return &s.nodes[i>>chunkBits][i&(chunkLen-1)] }

// find returns the node of a live timer, nil where it is gone.
func (s *slab[T]) find(id ID) *node[T] {
	c := int(id.index >> chunkBits)
	if c >= len(s.nodes) || s.nodes[c] == nil {
		return nil
	}
	n := &s.nodes[c][id.index&(chunkLen-1)]
	if n.generation != id.generation || id.generation == 0 {
		return nil
	}
	return n
}

// take returns a free node.
func (s *slab[T]) take() (uint32, *node[T]) {
	c := s.open
	if c == 0 {
		c = s.grow()
	}
	m := &s.chunks[c]
	i := m.free
	if i == 0 {
		i = c<<chunkBits | m.used
		m.used++
	}
	n := s.at(i)
	if m.free == i {
		m.free = n.next
	}
	if m.live++; m.live == chunkLen {
		s.close(c)
	}
	if s.spare == c {
		s.spare = 0
	}
	return i, n
}

// give takes node i back. Its value is cleared, so that nothing stays reachable through it.
func (s *slab[T]) give(i uint32, n *node[T]) {
	c := i >> chunkBits
	m := &s.chunks[c]
	var none T
	n.value = none
	n.generation = 0
	n.next = m.free
	m.free = i
	m.live--
	switch m.live {
	case chunkLen - 1:
		s.reopen(c)
	case 0:
		m.free, m.used = 0, 0 // hand the nodes out in order of address again
		if s.spare == 0 {
			s.spare = c
			return
		}
		s.close(c)
		s.nodes[c] = nil
		m.next, s.vacant = s.vacant, c
	}
}

// grow makes a new chunk and opens it.
func (s *slab[T]) grow() uint32 {
	c := s.vacant
	switch {
	case c != 0:
		s.vacant = s.chunks[c].next
	case len(s.nodes) == 0:
		s.nodes, s.chunks, c = make([]*[chunkLen]node[T], 2), make([]chunk, 2), 1
	case len(s.nodes) == maxChunks:
		panic("wheel: more than 2³² timers")
	default:
		c = uint32(len(s.nodes))
		s.nodes, s.chunks = append(s.nodes, nil), append(s.chunks, chunk{})
	}
	s.nodes[c] = new([chunkLen]node[T])
	s.reopen(c)
	return c
}

// reopen puts chunk c before the others that have room.
func (s *slab[T]) reopen(c uint32) {
	s.chunks[c].prev, s.chunks[c].next = 0, s.open
	if s.open != 0 {
		s.chunks[s.open].prev = c
	}
	s.open = c
}

// close takes chunk c out of those that have room.
func (s *slab[T]) close(c uint32) {
	m := &s.chunks[c]
	if m.prev == 0 {
		s.open = m.next
	} else {
		s.chunks[m.prev].next = m.next
	}
	if m.next != 0 {
		s.chunks[m.next].prev = m.prev
	}
}
