// kafkajs as a member of a group. What it takes and tells: clients/python/member_loop.py (it cannot hold).
'use strict'

const readline = require('readline')
const { Kafka, logLevel } = require('kafkajs')
const ConsumerGroup = require('kafkajs/src/consumer/consumerGroup')

const [bootstrap, groupId, topic, name, , sessionMs] = process.argv.slice(2)
const brokers = bootstrap.split(',')
const kafka = new Kafka({ clientId: name, brokers, logLevel: logLevel.NOTHING, retry: { retries: 20 } })
const consumer = kafka.consumer({
  groupId,
  sessionTimeout: Number(sessionMs),
  heartbeatInterval: Math.floor(Number(sessionMs) / 6),
  rebalanceTimeout: 60_000,
  maxWaitTimeInMs: 100,
  allowAutoTopicCreation: false,
})

let generation = -1

function tell(event, facts = {}) {
  process.stdout.write(JSON.stringify({ event, at: Date.now(), ...facts }) + '\n')
}

// Its GROUP_JOIN event comes without the generation.
const joinAndSync = ConsumerGroup.prototype.joinAndSync
ConsumerGroup.prototype.joinAndSync = async function () {
  const result = await joinAndSync.call(this)
  generation = this.generationId
  const partitions = this.assigned().flatMap((assigned) => assigned.partitions)
  tell('assigned', { generation, member: this.memberId, partitions })
  return result
}

async function onBatch({ batch }) {
  const read = generation // Commits of what was read before a rebalance must not pass for the next generation's.
  const records = batch.messages.map((message) => [batch.partition, Number(message.offset), message.value.toString()])
  if (records.length === 0) return
  tell('records', { generation: read, records })
  const next = records[records.length - 1][1] + 1
  const facts = { generation: read, offsets: { [batch.partition]: next } }
  try {
    await consumer.commitOffsets([{ topic, partition: batch.partition, offset: String(next) }])
    tell('committed', facts)
  } catch (error) {
    tell('refused', { ...facts, error: `${error.name} ${error.message}` })
    // A batch that fails makes kafkajs try again or join anew, but one that fails for good ends it. That is what it is
    // told when it was shut out; its next heartbeat makes it join again.
    if (error.retriable !== false) throw error
  }
}

async function main() {
  const lines = readline.createInterface({ input: process.stdin })
  lines.on('close', () => process.exit(0))
  lines.on('line', async (line) => {
    if (line.trim() !== 'leave') return
    await consumer.disconnect()
    tell('left')
    process.exit(0)
  })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({ autoCommit: false, eachBatch: onBatch })
}

main()
