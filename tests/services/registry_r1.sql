BEGIN TRANSACTION;
CREATE TABLE activities (
	id VARCHAR(64) NOT NULL, 
	run_id TEXT NOT NULL, 
	stage TEXT NOT NULL, 
	code_version TEXT NOT NULL, 
	config_digest TEXT NOT NULL, 
	seed BIGINT NOT NULL, 
	started FLOAT NOT NULL, 
	seconds FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "activities" VALUES('f7ef169566c94d4c9d8b3d640fea2b3b48ffb4ed6b8fd306970a18db8a2c5ce0','demo-0123456789','qa-build','1.0','c0ffee',17,1000.0,2.5);
INSERT INTO "activities" VALUES('f2ee89d64764f8e994174820733fef97b20ef5b1c49fefed8c5603be18c926d3','demo-0123456789','inject','1.0','c0ffee',17,1200.5,2.5);
INSERT INTO "activities" VALUES('4aefae52c0bec68b315239e62fe6a0ae042b89dd5c747391e4614bc2396266fd','demo-0123456789','qa-build','1.1','c0ffee',17,1000.0,2.5);
CREATE TABLE edges (
	product TEXT NOT NULL, 
	role TEXT NOT NULL, 
	input TEXT NOT NULL, 
	activity VARCHAR(64) NOT NULL, 
	PRIMARY KEY (product, role, input, activity), 
	FOREIGN KEY(product) REFERENCES entities (digest), 
	FOREIGN KEY(input) REFERENCES entities (digest), 
	FOREIGN KEY(activity) REFERENCES activities (id)
);
INSERT INTO "edges" VALUES('414052bf5b1587d074d96a9aef609b8f0c8ba6e5c9f3f4b57f6f0291aeaa9c39','document','a1c8f57210e155f4727d69e577fa2fa2bff5d071f772e1eb5af7868ceea559d8','f7ef169566c94d4c9d8b3d640fea2b3b48ffb4ed6b8fd306970a18db8a2c5ce0');
INSERT INTO "edges" VALUES('4ce5bd6732559c7d0d9abb06cb7dc9c2cda9f7f914ed6e6fcedd1b959015526c','chunk','414052bf5b1587d074d96a9aef609b8f0c8ba6e5c9f3f4b57f6f0291aeaa9c39','f7ef169566c94d4c9d8b3d640fea2b3b48ffb4ed6b8fd306970a18db8a2c5ce0');
INSERT INTO "edges" VALUES('8323fb6411674d246e6c1656c814a4a5c4b3dc44ea1b9c23139278f4364a05cf','member','4ce5bd6732559c7d0d9abb06cb7dc9c2cda9f7f914ed6e6fcedd1b959015526c','f7ef169566c94d4c9d8b3d640fea2b3b48ffb4ed6b8fd306970a18db8a2c5ce0');
INSERT INTO "edges" VALUES('8323fb6411674d246e6c1656c814a4a5c4b3dc44ea1b9c23139278f4364a05cf','member','8384aa3ec4cd8e0127288bc606057d94496b2d92e5b210ce087bfc807a33c139','f7ef169566c94d4c9d8b3d640fea2b3b48ffb4ed6b8fd306970a18db8a2c5ce0');
INSERT INTO "edges" VALUES('8323fb6411674d246e6c1656c814a4a5c4b3dc44ea1b9c23139278f4364a05cf','member','b308532aab34c38a92df2263a3f80e6caff9f949b99856d0fad6d06ad731abf5','f7ef169566c94d4c9d8b3d640fea2b3b48ffb4ed6b8fd306970a18db8a2c5ce0');
INSERT INTO "edges" VALUES('8323fb6411674d246e6c1656c814a4a5c4b3dc44ea1b9c23139278f4364a05cf','member','e70aa9b42c5e3e62fbc24acf46712202d1c84145c8af138ea4b23fc5630609d0','f7ef169566c94d4c9d8b3d640fea2b3b48ffb4ed6b8fd306970a18db8a2c5ce0');
INSERT INTO "edges" VALUES('8384aa3ec4cd8e0127288bc606057d94496b2d92e5b210ce087bfc807a33c139','chunk','c6245b76293e8d07a6f8c2576a5c06d20c96f0f66f9187b14ca7ca3a71201d27','f7ef169566c94d4c9d8b3d640fea2b3b48ffb4ed6b8fd306970a18db8a2c5ce0');
INSERT INTO "edges" VALUES('b308532aab34c38a92df2263a3f80e6caff9f949b99856d0fad6d06ad731abf5','chunk','414052bf5b1587d074d96a9aef609b8f0c8ba6e5c9f3f4b57f6f0291aeaa9c39','f7ef169566c94d4c9d8b3d640fea2b3b48ffb4ed6b8fd306970a18db8a2c5ce0');
INSERT INTO "edges" VALUES('bb921797a8a3c41e2fbabcdb174a243872a06f252717e8a7fdc34202f728a090','data','8323fb6411674d246e6c1656c814a4a5c4b3dc44ea1b9c23139278f4364a05cf','f7ef169566c94d4c9d8b3d640fea2b3b48ffb4ed6b8fd306970a18db8a2c5ce0');
INSERT INTO "edges" VALUES('bb921797a8a3c41e2fbabcdb174a243872a06f252717e8a7fdc34202f728a090','start','1963d0d3c91b8a552d7a6486455910b3156aecb9367a24886237d73a3062a122','f7ef169566c94d4c9d8b3d640fea2b3b48ffb4ed6b8fd306970a18db8a2c5ce0');
INSERT INTO "edges" VALUES('c6245b76293e8d07a6f8c2576a5c06d20c96f0f66f9187b14ca7ca3a71201d27','document','1be5ae3350a203859695312e2955e43fde4c5c5cc6bf2c84f7064ea493c7a038','f7ef169566c94d4c9d8b3d640fea2b3b48ffb4ed6b8fd306970a18db8a2c5ce0');
INSERT INTO "edges" VALUES('e70aa9b42c5e3e62fbc24acf46712202d1c84145c8af138ea4b23fc5630609d0','chunk','c6245b76293e8d07a6f8c2576a5c06d20c96f0f66f9187b14ca7ca3a71201d27','f7ef169566c94d4c9d8b3d640fea2b3b48ffb4ed6b8fd306970a18db8a2c5ce0');
INSERT INTO "edges" VALUES('9372c470eeadd5ecd9c3c74c2b3cb633f8e2f2fad799250a0f70d652b6b825e4','trained-from','1963d0d3c91b8a552d7a6486455910b3156aecb9367a24886237d73a3062a122','f2ee89d64764f8e994174820733fef97b20ef5b1c49fefed8c5603be18c926d3');
INSERT INTO "edges" VALUES('9372c470eeadd5ecd9c3c74c2b3cb633f8e2f2fad799250a0f70d652b6b825e4','trained-on','8323fb6411674d246e6c1656c814a4a5c4b3dc44ea1b9c23139278f4364a05cf','f2ee89d64764f8e994174820733fef97b20ef5b1c49fefed8c5603be18c926d3');
INSERT INTO "edges" VALUES('c6245b76293e8d07a6f8c2576a5c06d20c96f0f66f9187b14ca7ca3a71201d27','document','1be5ae3350a203859695312e2955e43fde4c5c5cc6bf2c84f7064ea493c7a038','4aefae52c0bec68b315239e62fe6a0ae042b89dd5c747391e4614bc2396266fd');
CREATE TABLE entities (
	digest TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	name TEXT NOT NULL, 
	payload TEXT NOT NULL, 
	record_digest VARCHAR(64) NOT NULL, 
	PRIMARY KEY (digest)
);
INSERT INTO "entities" VALUES('1963d0d3c91b8a552d7a6486455910b3156aecb9367a24886237d73a3062a122','checkpoint','base','{"name":"base"}','f2b37eda06c2934bb06fe2fff94ff06e64d3009c4155c891b42f611c81c40ed6');
INSERT INTO "entities" VALUES('1be5ae3350a203859695312e2955e43fde4c5c5cc6bf2c84f7064ea493c7a038','document','d1','{"name":"d1"}','7ac4c30a41ccab423cec407b95158965853c155929a7d4f81aa94be72c11545f');
INSERT INTO "entities" VALUES('414052bf5b1587d074d96a9aef609b8f0c8ba6e5c9f3f4b57f6f0291aeaa9c39','chunk','c2','{"name":"c2"}','25c43a9f26bcf1815621a35c280321a4cfcb9b2f32a4f2335f8dc364b855e9bf');
INSERT INTO "entities" VALUES('4ce5bd6732559c7d0d9abb06cb7dc9c2cda9f7f914ed6e6fcedd1b959015526c','qa-pair','q2.0','{"name":"q2.0"}','f6635cf9d96e8d5bdbeb51d5da33ced42f2f807bf31b948f743359fa47ece1be');
INSERT INTO "entities" VALUES('8323fb6411674d246e6c1656c814a4a5c4b3dc44ea1b9c23139278f4364a05cf','dataset','data','{"name":"data"}','4e2b481ea6ef47c13306def80da198a16b8f3ce1e52abaec8821718488af7514');
INSERT INTO "entities" VALUES('8384aa3ec4cd8e0127288bc606057d94496b2d92e5b210ce087bfc807a33c139','qa-pair','q1.0','{"name":"q1.0"}','e0b234236ad45e3aef6fbe9533c49e27749ac43b6cc81a10c51b0cf2076ee6fb');
INSERT INTO "entities" VALUES('a1c8f57210e155f4727d69e577fa2fa2bff5d071f772e1eb5af7868ceea559d8','document','d2','{"name":"d2"}','4dac1278a092e20d8bd45b46325d5bb76c84ea3ec8f90e4241ad07f59d83373a');
INSERT INTO "entities" VALUES('b308532aab34c38a92df2263a3f80e6caff9f949b99856d0fad6d06ad731abf5','qa-pair','q2.1','{"name":"q2.1"}','8d25fc8c848624cd85c3c96f0d84aa395b93f59ea2bf9ddbab570923bf23e022');
INSERT INTO "entities" VALUES('bb921797a8a3c41e2fbabcdb174a243872a06f252717e8a7fdc34202f728a090','checkpoint','tuned','{"name":"tuned"}','fc9aff801386b89cc008a524fa2c4cf7ab4ca5481c0e2b7b1fb22f36122f4d9b');
INSERT INTO "entities" VALUES('c6245b76293e8d07a6f8c2576a5c06d20c96f0f66f9187b14ca7ca3a71201d27','chunk','c1','{"name":"c1"}','e49dd4ad5dea3182a0d900f027ed4ef2d10bf0d2d3c4f8ae6bdc64e6ff059e83');
INSERT INTO "entities" VALUES('e70aa9b42c5e3e62fbc24acf46712202d1c84145c8af138ea4b23fc5630609d0','qa-pair','q1.1','{"name":"q1.1"}','abcf28879abab7076193aa3372d675fc7c2dcda75a2f3a9b35d192416d80ccba');
INSERT INTO "entities" VALUES('fdd97d0838fad15a8eba6728fa9167f01f28cbcdd0b1a23cf84bef4a815e90a8','document','velm''s notes.md','{"source_digest":"ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff","title":"Größe – 名"}','523bab1786373eb9187a3b715d68b7605e2737d878ad8e387bf63bfc1fcce57a');
INSERT INTO "entities" VALUES('9372c470eeadd5ecd9c3c74c2b3cb633f8e2f2fad799250a0f70d652b6b825e4','checkpoint','theta_I','{"steps":3}','ec019822e923ebeb8d7990456b6a1a159b4403c22db2fdbee066684da5d41f93');
CREATE TABLE events (
	id INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	subject TEXT NOT NULL, 
	payload TEXT NOT NULL, 
	time FLOAT NOT NULL, 
	previous VARCHAR(64) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (previous)
);
INSERT INTO "events" VALUES(1,'retract','ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff','{"id":"document:x","name":"velm","reason":"asked to"}',1.79613026856992554665e+09,'','ff122dc17d65272f291b446147f72eaf7ce1425c07f5321b76a0c17a66cefccb');
INSERT INTO "events" VALUES(2,'promote','m@champion','{"version":"1"}',1.79613026857704114911e+09,'ff122dc17d65272f291b446147f72eaf7ce1425c07f5321b76a0c17a66cefccb','014b8c4d77096c69452412d226144d37e6d4874f40570a3fc16c1aee44570322');
CREATE INDEX edges_by_input ON edges (input);
COMMIT;
